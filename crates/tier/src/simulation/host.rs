//! The simulated side of [`crate::host`]: the same names, each a point.

use std::io;
use std::panic::Location;

use super::scheduler::{self, draw_fault, point_at, What};

/// A point before a system call, which may fail instead.
#[track_caller]
pub fn syscall(name: &'static str) -> io::Result<()> {
    syscall_at(name, Location::caller())
}

fn syscall_at(name: &'static str, at: &'static Location<'static>) -> io::Result<()> {
    let Some(me) = scheduler::me() else { return Ok(()) };
    point_at(What::Call(name), at);
    // Those that remove things undo what failed, and need no space.
    let errors: &[i32] = match name {
        "unlink" | "rmdir" | "stat" | "close" => &[],
        "write" | "fallocate" | "open to make" | "mkdir" | "ftruncate" => &[libc::EIO, libc::ENOSPC],
        _ => &[libc::EIO],
    };
    match draw_fault(me) {
        Some(draw) if !errors.is_empty() => {
            Err(io::Error::from_raw_os_error(errors[draw as usize % errors.len()]))
        }
        _ => Ok(()),
    }
}

/// As [`syscall`], for one that the caller repeats when a signal interrupts it.
#[track_caller]
pub fn interruptible(name: &'static str) -> io::Result<()> {
    interruptible_at(name, Location::caller())
}

fn interruptible_at(name: &'static str, at: &'static Location<'static>) -> io::Result<()> {
    syscall_at(name, at)?;
    match scheduler::me().is_some() && scheduler::draw_interruption() {
        true => Err(io::Error::from_raw_os_error(libc::EINTR)),
        false => Ok(()),
    }
}

/// A point.
#[track_caller]
pub fn point(name: &'static str) {
    point_at(What::Call(name), Location::caller());
}

/// The kernel ends a transfer between two pages of a file, never inside one.
const PAGE_BYTES: u64 = 4096;

/// How many of `bytes` one call transfers from a file's `offset` on, or to it: now and then only some of its pages.
#[track_caller]
pub fn transfer_bytes(offset: u64, bytes: usize) -> usize {
    let Some(_) = scheduler::me() else { return bytes };
    point_at(What::Call("transfer"), Location::caller());
    let first = offset / PAGE_BYTES;
    let borders = (offset + bytes as u64).saturating_sub(1) / PAGE_BYTES - first;
    let mut s = scheduler::state();
    match borders > 0 && s.random.percent(10) {
        true => ((first + 1 + s.random.below(borders)) * PAGE_BYTES - offset) as usize,
        false => bytes,
    }
}

/// 16 bytes that follow from the seed.
pub fn random_uuid(random: impl FnOnce() -> [u8; 16]) -> [u8; 16] {
    if scheduler::me().is_none() {
        return random();
    }
    let mut s = scheduler::state();
    let (high, low) = (s.random.next(), s.random.next());
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

/// See [`crate::host::atomic`].
pub mod atomic {
    use std::panic::Location;
    use std::sync::atomic as real;

    pub use std::sync::atomic::Ordering;

    use crate::simulation::mutation::{
        applies, is_wrong, loaded, looks, made_a_difference, saw, stored, Site,
    };
    use crate::simulation::scheduler::{late_store, point_at, settle_late, What};

    /// A full barrier. Simulated processes are sequentially consistent.
    pub fn fence(order: Ordering) {
        real::fence(order);
    }

    macro_rules! word {
        ($name:ident, $real:ident, $int:ident) => {
            /// A word that processes share: every access is a point.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(real::$real);

            impl $name {
                /// As in the standard library.
                pub const fn new(value: $int) -> $name {
                    $name(real::$real::new(value))
                }

                fn address(&self) -> usize {
                    self.0.as_ptr() as usize
                }

                /// As in the standard library.
                #[track_caller]
                pub fn load(&self, _: Ordering) -> $int {
                    let at = Location::caller();
                    point_at(What::Load, at);
                    loaded(self.address(), u64::from(self.0.load(real::Ordering::SeqCst)), at) as $int
                }

                /// As in the standard library.
                #[track_caller]
                pub fn store(&self, value: $int, _: Ordering) {
                    let at = Location::caller();
                    point_at(What::Store, at);
                    let differs = || self.0.load(real::Ordering::SeqCst) != value;
                    saw(self.address(), u64::from(value));
                    if applies(Site::LostStore, at, differs) {
                        if differs() {
                            is_wrong(self.address());
                        }
                        return;
                    }
                    if applies(Site::LateStore, at, differs) && differs() {
                        let (address, width) = (self.address(), std::mem::size_of::<$int>());
                        late_store(address, u64::from(value), width);
                        return is_wrong(address);
                    }
                    stored(self.address());
                    self.0.store(value, real::Ordering::SeqCst);
                    settle_late();
                }

                #[track_caller]
                fn change<T>(&self, change: impl FnOnce(&real::$real) -> T) -> T {
                    point_at(What::Exchange, Location::caller());
                    looks(self.address());
                    let changed = change(&self.0);
                    saw(self.address(), u64::from(self.0.load(real::Ordering::SeqCst)));
                    settle_late();
                    changed
                }

                /// As in the standard library.
                #[track_caller]
                pub fn swap(&self, value: $int, _: Ordering) -> $int {
                    self.change(|word| word.swap(value, real::Ordering::SeqCst))
                }

                /// As in the standard library.
                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    from: $int,
                    to: $int,
                    _: Ordering,
                    _: Ordering,
                ) -> Result<$int, $int> {
                    let differs = || self.0.load(real::Ordering::SeqCst) != from;
                    if applies(Site::BlindExchange, Location::caller(), differs) {
                        if self.change(|word| word.swap(to, real::Ordering::SeqCst)) != from {
                            made_a_difference();
                        }
                        return Ok(from);
                    }
                    let order = real::Ordering::SeqCst;
                    self.change(|word| word.compare_exchange(from, to, order, order))
                }

                /// As in the standard library; never fails spuriously.
                #[track_caller]
                pub fn compare_exchange_weak(
                    &self,
                    from: $int,
                    to: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.compare_exchange(from, to, success, failure)
                }

                /// As in the standard library: a load, then compare-and-swap until it succeeds.
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut change: impl FnMut($int) -> Option<$int>,
                ) -> Result<$int, $int> {
                    let mut known = self.load(failure);
                    while let Some(next) = change(known) {
                        match self.compare_exchange(known, next, success, failure) {
                            Ok(old) => return Ok(old),
                            Err(other) => known = other,
                        }
                    }
                    Err(known)
                }
            }

            word!(@fetch $name, $real, $int; fetch_add fetch_sub fetch_max fetch_min fetch_or fetch_and fetch_xor);
        };
        (@fetch $name:ident, $real:ident, $int:ident; $($fetch:ident)*) => {
            impl $name {
                $(
                    /// As in the standard library.
                    #[track_caller]
                    pub fn $fetch(&self, value: $int, _: Ordering) -> $int {
                        let before = || self.0.load(real::Ordering::SeqCst);
                        let differs = || {
                            let would = real::$real::new(before());
                            would.$fetch(value, real::Ordering::SeqCst);
                            would.into_inner() != before()
                        };
                        if applies(Site::LostStore, Location::caller(), differs) {
                            if differs() {
                                is_wrong(self.address());
                            }
                            return before();
                        }
                        self.change(|word| word.$fetch(value, real::Ordering::SeqCst))
                    }
                )*
            }
        };
    }

    impl AtomicU32 {
        /// The word without points, for the simulated kernel.
        pub(crate) fn plain(&self) -> &real::AtomicU32 {
            &self.0
        }
    }

    word!(AtomicU64, AtomicU64, u64);
    word!(AtomicU32, AtomicU32, u32);
}

/// See [`crate::host::sync`].
pub mod sync {
    use std::ops::{Deref, DerefMut};
    use std::panic::Location;
    use std::sync::{self as real, LockResult, PoisonError, TryLockError};
    use std::time::Duration;

    use crate::simulation::mutation::{applies, Site};
    use crate::simulation::scheduler::{block, is_waited_for, me, point_at, wake, Key, What};

    /// As in the standard library.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(real::Mutex<T>);

    /// As in the standard library.
    pub struct MutexGuard<'a, T> {
        lock: &'a Mutex<T>,
        /// None only while it waits for a condition, and when it is dropped.
        guard: Option<real::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        /// As in the standard library.
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(real::Mutex::new(value))
        }

        fn key(&self) -> Key {
            Key::Address(self as *const Mutex<T> as *const () as usize)
        }

        /// As in the standard library.
        #[track_caller]
        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let at = Location::caller();
            point_at(What::Lock, at);
            loop {
                match self.0.try_lock() {
                    Ok(guard) => return Ok(MutexGuard { lock: self, guard: Some(guard) }),
                    Err(TryLockError::Poisoned(poisoned)) => {
                        let guard = Some(poisoned.into_inner());
                        return Err(PoisonError::new(MutexGuard { lock: self, guard }));
                    }
                    Err(TryLockError::WouldBlock) if me().is_some() => {
                        block(self.key(), None, "a mutex", at);
                    }
                    Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                }
            }
        }

        /// As in the standard library.
        pub fn into_inner(self) -> LockResult<T> {
            self.0.into_inner()
        }

        /// As in the standard library.
        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            self.0.get_mut()
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.guard.as_ref().expect("locked")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("locked")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            if self.guard.take().is_some() {
                wake(self.lock.key(), usize::MAX, false);
            }
        }
    }

    /// As in the standard library.
    #[derive(Debug, Default)]
    pub struct Condvar {
        /// Two conditions have two addresses.
        _address: u8,
    }

    /// As in the standard library.
    #[derive(Clone, Copy, Debug)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        /// As in the standard library.
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        /// As in the standard library.
        pub const fn new() -> Condvar {
            Condvar { _address: 0 }
        }

        fn key(&self) -> Key {
            Key::Address(self as *const Condvar as usize)
        }

        /// As in the standard library.
        #[track_caller]
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let at = Location::caller();
            let lock = guard.lock;
            self.release_and_block(guard, None, at);
            lock.lock()
        }

        /// As in the standard library.
        #[track_caller]
        pub fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            let at = Location::caller();
            let lock = guard.lock;
            let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            let woken = self.release_and_block(guard, Some(ns), at);
            match lock.lock() {
                Ok(guard) => Ok((guard, WaitTimeoutResult(!woken))),
                Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), WaitTimeoutResult(!woken)))),
            }
        }

        /// As in the standard library.
        #[track_caller]
        pub fn wait_timeout_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            timeout: Duration,
            mut holds: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            let end = super::time::Instant::now() + timeout;
            while holds(&mut guard) {
                let left = end.saturating_duration_since(super::time::Instant::now());
                if left.is_zero() {
                    return Ok((guard, WaitTimeoutResult(true)));
                }
                guard = self.wait_timeout(guard, left)?.0;
            }
            Ok((guard, WaitTimeoutResult(false)))
        }

        /// As in the standard library.
        #[track_caller]
        pub fn wait_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            mut holds: impl FnMut(&mut T) -> bool,
        ) -> LockResult<MutexGuard<'a, T>> {
            while holds(&mut guard) {
                guard = self.wait(guard)?;
            }
            Ok(guard)
        }

        /// Lets the lock go only when the thread waits already: no wake-up comes in between.
        fn release_and_block<T>(
            &self,
            mut guard: MutexGuard<'_, T>,
            timeout_ns: Option<u64>,
            at: &'static Location<'static>,
        ) -> bool {
            let inner = guard.guard.take();
            let lock = guard.lock.key();
            if me().is_none() {
                drop(inner);
                std::thread::yield_now();
                return true;
            }
            // Only the thread that runs could wake us, and it runs only within `block`.
            drop(inner);
            wake(lock, usize::MAX, false);
            block(self.key(), timeout_ns, "a condition", at)
        }

        /// As in the standard library.
        #[track_caller]
        pub fn notify_all(&self) {
            self.notify(usize::MAX, Location::caller());
        }

        /// As in the standard library.
        #[track_caller]
        pub fn notify_one(&self) {
            self.notify(1, Location::caller());
        }

        fn notify(&self, count: usize, at: &'static Location<'static>) {
            point_at(What::Wake, at);
            let key = self.key();
            wake(key, count, applies(Site::LostWake, at, || is_waited_for(key)));
        }
    }
}

/// See [`crate::host::thread`].
pub mod thread {
    use std::io;
    use std::panic::{self, AssertUnwindSafe, Location};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use crate::simulation::scheduler::{self, block, point_at, Key, What};

    type Given<T> = Arc<Mutex<Option<std::thread::Result<T>>>>;

    /// As in the standard library.
    pub struct JoinHandle<T>(Kind<T>);

    enum Kind<T> {
        Simulated(usize, Given<T>),
        Real(std::thread::JoinHandle<T>),
    }

    impl<T> JoinHandle<T> {
        /// As in the standard library.
        #[track_caller]
        pub fn join(self) -> std::thread::Result<T> {
            match self.0 {
                Kind::Real(handle) => handle.join(),
                Kind::Simulated(thread, given) => loop {
                    if let Some(given) = given.lock().expect("never poisoned").take() {
                        return given;
                    }
                    block(Key::Thread(thread), None, "a thread", Location::caller());
                },
            }
        }

        /// As in the standard library.
        pub fn is_finished(&self) -> bool {
            match &self.0 {
                Kind::Real(handle) => handle.is_finished(),
                Kind::Simulated(_, given) => given.lock().expect("never poisoned").is_some(),
            }
        }
    }

    /// As in the standard library.
    #[derive(Default)]
    pub struct Builder(String);

    impl Builder {
        /// As in the standard library.
        pub fn new() -> Builder {
            Builder::default()
        }

        /// As in the standard library.
        pub fn name(self, name: String) -> Builder {
            Builder(name)
        }

        /// As in the standard library.
        #[track_caller]
        pub fn spawn<T: Send + 'static>(
            self,
            body: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            let Some(me) = scheduler::me() else {
                return Ok(JoinHandle(Kind::Real(std::thread::Builder::new().name(self.0).spawn(body)?)));
            };
            super::syscall_at("clone", Location::caller())?;
            let process = scheduler::state().process_of(me);
            let given: Given<T> = Arc::default();
            let thread = scheduler::start_thread(process, self.0.clone(), {
                let (given, name) = (given.clone(), self.0);
                move || {
                    let ended = panic::catch_unwind(AssertUnwindSafe(body));
                    if let Err(payload) = &ended {
                        let text = scheduler::panic_text(&**payload);
                        scheduler::state().fail(format!("thread {name} panicked: {text}"));
                    }
                    *given.lock().expect("never poisoned") = Some(ended);
                }
            });
            point_at(What::Start, Location::caller());
            Ok(JoinHandle(Kind::Simulated(thread, given)))
        }
    }

    /// As in the standard library.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        Builder::new().spawn(body).expect("a thread")
    }

    /// As in the standard library, in virtual time.
    #[track_caller]
    pub fn sleep(duration: Duration) {
        if scheduler::me().is_none() {
            return std::thread::sleep(duration);
        }
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        block(Key::Sleep, Some(ns), "time", Location::caller());
    }

    /// As in the standard library.
    #[track_caller]
    pub fn yield_now() {
        sleep(Duration::from_nanos(1));
    }
}

/// See [`crate::host::time`].
pub mod time {
    use std::ops::{Add, AddAssign, Sub};
    use std::panic::Location;
    use std::sync::OnceLock;
    use std::time::{self as real, Duration};

    use crate::simulation::scheduler::clock_ns;

    /// As in the standard library, in virtual time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(real::Instant);

    static BASE: OnceLock<real::Instant> = OnceLock::new();

    impl Instant {
        /// As in the standard library.
        #[track_caller]
        pub fn now() -> Instant {
            let base = *BASE.get_or_init(real::Instant::now);
            Instant(match clock_ns(Location::caller()) {
                Some(ns) => base + Duration::from_nanos(ns),
                None => real::Instant::now(),
            })
        }

        /// As in the standard library.
        pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
            self.0.saturating_duration_since(earlier.0)
        }

        /// As in the standard library.
        pub fn duration_since(&self, earlier: Instant) -> Duration {
            self.0.duration_since(earlier.0)
        }

        /// As in the standard library.
        pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
            self.0.checked_add(duration).map(Instant)
        }

        /// As in the standard library.
        #[track_caller]
        pub fn elapsed(&self) -> Duration {
            Instant::now().saturating_duration_since(*self)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Instant;
        fn add(self, duration: Duration) -> Instant {
            Instant(self.0 + duration)
        }
    }

    impl AddAssign<Duration> for Instant {
        fn add_assign(&mut self, duration: Duration) {
            self.0 += duration;
        }
    }

    impl Sub<Duration> for Instant {
        type Output = Instant;
        fn sub(self, duration: Duration) -> Instant {
            Instant(self.0 - duration)
        }
    }

    impl Sub<Instant> for Instant {
        type Output = Duration;
        fn sub(self, earlier: Instant) -> Duration {
            self.saturating_duration_since(earlier)
        }
    }
}

/// See [`crate::host::fs`].
pub mod fs {
    use std::fs as real;
    use std::io::{self, Read, Seek, SeekFrom, Write};
    use std::ops::Deref;
    use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
    use std::panic::Location;
    use std::path::{Path, PathBuf};

    pub use std::fs::*;

    use super::{interruptible_at, syscall_at, transfer_bytes};
    use crate::simulation::kernel::{closed, flushed};
    use crate::simulation::{names, scheduler};

    /// As in the standard library.
    #[derive(Debug)]
    pub struct File(real::File, Closing);

    /// What happens when a descriptor of a file, by device and inode, is closed.
    #[derive(Debug)]
    struct Closing(u64, u64);

    impl Drop for Closing {
        fn drop(&mut self) {
            closed((self.0, self.1));
        }
    }

    fn opened(file: real::File) -> io::Result<File> {
        let meta = file.metadata()?;
        Ok(File(file, Closing(meta.dev(), meta.ino())))
    }

    impl Deref for File {
        type Target = real::File;
        fn deref(&self) -> &real::File {
            &self.0
        }
    }

    impl From<File> for real::File {
        fn from(File(file, closing): File) -> real::File {
            std::mem::forget(closing);
            file
        }
    }

    impl File {
        /// As in the standard library.
        #[track_caller]
        pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
            syscall_at("open", Location::caller())?;
            real::File::open(path).and_then(opened)
        }

        /// As in the standard library.
        pub fn options() -> OpenOptions {
            OpenOptions::new()
        }

        /// As in the standard library.
        #[track_caller]
        pub fn sync_all(&self) -> io::Result<()> {
            syscall_at("fsync", Location::caller())?;
            self.0.sync_all()?;
            flushed(&self.0);
            Ok(())
        }

        /// As in the standard library.
        #[track_caller]
        pub fn sync_data(&self) -> io::Result<()> {
            syscall_at("fdatasync", Location::caller())?;
            self.0.sync_data()?;
            flushed(&self.0);
            Ok(())
        }
    }

    /// At an offset, as `FileExt` of the standard library.
    impl File {
        /// Goes on after short writes, as the standard library does, and after interruptions.
        #[track_caller]
        pub fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
            while !bytes.is_empty() {
                syscall_at("write", Location::caller())?;
                let written = self.0.write_at(&bytes[..transfer_bytes(offset, bytes.len())], offset)?;
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Ok(())
        }

        /// As in the standard library.
        #[track_caller]
        pub fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
            interruptible_at("read", Location::caller())?;
            let len = transfer_bytes(offset, out.len());
            self.0.read_at(&mut out[..len], offset)
        }

        /// As in the standard library.
        #[track_caller]
        pub fn set_len(&self, len: u64) -> io::Result<()> {
            syscall_at("ftruncate", Location::caller())?;
            self.0.set_len(len)
        }
    }

    impl Read for File {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            // Runs without interruptions have no point here: small files are read whole.
            if scheduler::me().is_some() && scheduler::may_interrupt() {
                interruptible_at("read", Location::caller())?;
            }
            self.0.read(out)
        }
    }

    impl Write for File {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            interruptible_at("write", Location::caller())?;
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    impl Seek for File {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// As in the standard library.
    #[derive(Clone, Debug)]
    pub struct OpenOptions {
        real: real::OpenOptions,
        makes: bool,
    }

    impl Default for OpenOptions {
        fn default() -> OpenOptions {
            OpenOptions::new()
        }
    }

    macro_rules! setters {
        ($($name:ident)*) => {
            $(
                /// As in the standard library.
                pub fn $name(&mut self, value: bool) -> &mut OpenOptions {
                    self.real.$name(value);
                    self
                }
            )*
        };
    }

    impl OpenOptions {
        /// As in the standard library.
        pub fn new() -> OpenOptions {
            OpenOptions { real: real::OpenOptions::new(), makes: false }
        }

        setters!(read write append truncate);

        /// As in the standard library.
        pub fn create(&mut self, value: bool) -> &mut OpenOptions {
            self.real.create(value);
            self.makes |= value;
            self
        }

        /// As in the standard library.
        pub fn create_new(&mut self, value: bool) -> &mut OpenOptions {
            self.real.create_new(value);
            self.makes |= value;
            self
        }

        /// As in the standard library.
        pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
            self.real.mode(mode);
            self
        }

        /// As in the standard library.
        pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
            self.real.custom_flags(flags);
            self
        }

        /// As in the standard library.
        #[track_caller]
        pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
            if !self.makes {
                syscall_at("open", Location::caller())?;
                return self.real.open(path).and_then(opened);
            }
            syscall_at("open to make", Location::caller())?;
            names::making(path.as_ref(), || self.real.open(&path)).and_then(opened)
        }
    }

    /// As in the standard library.
    #[derive(Debug)]
    pub struct DirBuilder(real::DirBuilder, bool);

    impl Default for DirBuilder {
        fn default() -> DirBuilder {
            DirBuilder::new()
        }
    }

    impl DirBuilder {
        /// As in the standard library.
        pub fn new() -> DirBuilder {
            DirBuilder(real::DirBuilder::new(), false)
        }

        /// As in the standard library.
        pub fn recursive(&mut self, value: bool) -> &mut DirBuilder {
            self.0.recursive(value);
            self.1 = value;
            self
        }

        /// As in the standard library.
        pub fn mode(&mut self, mode: u32) -> &mut DirBuilder {
            self.0.mode(mode);
            self
        }

        /// As in the standard library.
        #[track_caller]
        pub fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
            syscall_at("mkdir", Location::caller())?;
            let path = path.as_ref();
            let missing =
                path.parent().filter(|above| self.1 && !above.as_os_str().is_empty() && !above.exists());
            if let Some(above) = missing {
                self.create(above)?;
            }
            names::making(path, || self.0.create(path))
        }
    }

    macro_rules! calls {
        ($($name:ident($($arg:ident),+) -> $result:ty as $call:literal;)*) => {
            $(
                /// As in the standard library.
                #[track_caller]
                pub fn $name($($arg: impl AsRef<Path>),+) -> io::Result<$result> {
                    syscall_at($call, Location::caller())?;
                    real::$name($($arg),+)
                }
            )*
        };
    }

    calls! {
        metadata(path) -> Metadata as "stat";
        symlink_metadata(path) -> Metadata as "stat";
        read_dir(path) -> ReadDir as "open";
        read_link(path) -> PathBuf as "readlink";
        canonicalize(path) -> PathBuf as "readlink";
    }

    /// As in the standard library.
    #[track_caller]
    pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        syscall_at("rename", Location::caller())?;
        names::renaming(from.as_ref(), to.as_ref())
    }

    /// As in the standard library.
    #[track_caller]
    pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        syscall_at("link", Location::caller())?;
        names::making(to.as_ref(), || real::hard_link(from, &to))
    }

    /// As in the standard library.
    #[track_caller]
    pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
        syscall_at("unlink", Location::caller())?;
        names::removing(path.as_ref())
    }

    /// As in the standard library.
    #[track_caller]
    pub fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
        syscall_at("rmdir", Location::caller())?;
        names::removing_directory(path.as_ref())
    }

    /// As in the standard library.
    #[track_caller]
    pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
        syscall_at("mkdir", Location::caller())?;
        names::making(path.as_ref(), || real::create_dir(&path))
    }

    /// As in the standard library.
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        syscall_at("read", Location::caller())?;
        let mut bytes = Vec::new();
        opened(real::File::open(path)?)?.0.read_to_end(&mut bytes).map(|_| bytes)
    }

    /// As in the standard library.
    #[track_caller]
    pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
        String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// As in the standard library: one entry after the other, each a point.
    #[track_caller]
    pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let mut entries = read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            match entry.file_type()?.is_dir() {
                true => remove_dir_all(entry.path())?,
                false => remove_file(entry.path())?,
            }
        }
        remove_dir(path)
    }

    /// As in the standard library.
    #[track_caller]
    pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        syscall_at("open to make", Location::caller())?;
        syscall_at("write", Location::caller())?;
        names::making(path.as_ref(), || real::write(&path, bytes))
    }
}
