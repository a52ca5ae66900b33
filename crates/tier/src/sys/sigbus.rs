//! SIGBUS: who touches an absent page of a window, or a lost one of a pool, gets it, and answers the fault in its own
//! handler.
//!
//! One handler for the process, installed with the first window and never taken away; a fault that is none of ours goes
//! on to the handler that was there before. The table of windows is fixed and read without a lock.
//!
//! Invariants: an entry whose `users` is above 0 is neither freed nor given to another window; an entry is ours only in
//! the process (fork generation) that made it.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

/// Most windows, pools and files of shared words of one process at once.
const WINDOWS_MAX: usize = 4096;

/// Answers the faults of a window.
///
/// `serve` runs in a signal handler: it may not allocate, take a lock that any other code may hold while it touches a
/// window, or touch a window.
pub trait Serve: Send + Sync {
    /// A thread touched byte `offset`; whether to store, where the processor tells. True: try again. False: it is not
    /// available, and the program gets the signal.
    fn serve(&self, offset: u64, write: Option<bool>) -> bool;

    /// As `serve`, where the memory itself has failed under byte `offset`. True only where something else is mapped
    /// there now.
    fn lost(&self, offset: u64, write: Option<bool>) -> bool {
        self.serve(offset, write);
        false
    }
}

struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    generation: AtomicU64,
    server: AtomicPtr<Arc<dyn Serve>>,
    users: AtomicU32,
}

static TABLE: [Entry; WINDOWS_MAX] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        generation: AtomicU64::new(0),
        server: AtomicPtr::new(ptr::null_mut()),
        users: AtomicU32::new(0),
    }
}; WINDOWS_MAX];

/// One behind the last entry that was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// What was installed before us: written before our handler is, read by it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Guards the table against others who enter and leave, and the installing.
static CHANGE: Mutex<()> = Mutex::new(());

/// A window's place in the table.
#[derive(Debug)]
pub(super) struct Served {
    at: usize,
    /// The process that made it: a forked child has a copy, and may have given the place to a window of its own.
    generation: u64,
}

impl Served {
    /// From now on faults in these bytes of memory go to `server`.
    pub(super) fn enter(start: usize, len: usize, server: Arc<dyn Serve>) -> io::Result<Served> {
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let here = super::fork_generation();
        // Users that a child inherited never leave: such an entry stays unused for ever.
        let free = |entry: &Entry| {
            (entry.start.load(Relaxed) == 0 || entry.generation.load(Relaxed) != here)
                && entry.users.load(SeqCst) == 0
        };
        let at = TABLE.iter().position(free);
        let at = at.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
        let entry = &TABLE[at];
        // What a forked child inherited stays allocated: its owner is the parent.
        entry.start.store(0, SeqCst);
        entry.server.store(Box::into_raw(Box::new(server)), Release);
        entry.generation.store(here, Release);
        entry.end.store(start + len, Release);
        entry.start.store(start, SeqCst);
        USED.fetch_max(at + 1, AcqRel);
        Ok(Served { at, generation: here })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.generation != super::fork_generation() {
            return;
        }
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = &TABLE[self.at];
        entry.start.store(0, SeqCst);
        // Handlers that saw the range before are served to their end: each is one transfer of the device.
        while entry.users.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
        let server = entry.server.swap(ptr::null_mut(), AcqRel);
        // SAFETY: it came from Box::into_raw in `enter`; no thread uses it (users is 0 and the range is empty).
        drop(unsafe { Box::from_raw(server) });
    }
}

/// Makes our handler the process's, unless it is.
fn install() -> io::Result<()> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given; the old one is written to memory of its size.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), now.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero bytes are a value of the plain struct, and the call has filled it.
    let now = unsafe { now.assume_init() };
    let ours = on_sigbus as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    if now.sa_sigaction == ours {
        return Ok(());
    }
    // A thread may be in our handler with the one before (a program that put its own in front of ours): 152 bytes that
    // stay.
    BEFORE.store(Box::into_raw(Box::new(now)), Release);
    // Not on the alternate stack, which may be too small for a vector of calls: a stack that has run over is SIGSEGV.
    let mut action = now;
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` is a whole sigaction whose handler has the signature that SA_SIGINFO asks for; the set is ours.
    unsafe {
        // Nothing asynchronous runs inside: it might touch a window while SIGBUS is blocked. What is synchronous cannot
        // wait.
        libc::sigfillset(&mut action.sa_mask);
        for signal in [libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT] {
            libc::sigdelset(&mut action.sa_mask, signal);
        }
        match libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// What this process's handler for SIGBUS is, made ours again where a program put its own in its place.
pub(crate) fn keep_sigbus() -> io::Result<()> {
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    install()
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the address of this thread's errno, valid as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    // SAFETY: the kernel gives a whole siginfo with an address for a SIGBUS.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let served = match code {
        BUS_ADRERR => find(address, |server, offset| server.serve(offset, store(context))),
        // Memory that fails is never tried again.
        libc::BUS_MCEERR_AR => find(address, |server, offset| server.lost(offset, store(context))),
        _ => false,
    };
    if !served {
        go_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}

const BUS_ADRERR: i32 = 2;

/// What the server of an address answers; false: no server has it.
fn find(address: usize, answer: impl Fn(&dyn Serve, u64) -> bool) -> bool {
    for entry in &TABLE[..USED.load(Acquire)] {
        if address < entry.start.load(Acquire) || address >= entry.end.load(Acquire) {
            continue;
        }
        entry.users.fetch_add(1, SeqCst);
        // Again: it may have left before we were counted.
        let (start, end) = (entry.start.load(SeqCst), entry.end.load(SeqCst));
        let inside = start != 0
            && (start..end).contains(&address)
            && entry.generation.load(Acquire) == super::fork_generation();
        let served = inside && {
            // SAFETY: a server that leaves empties the range first and then waits for users; we were counted and then
            // saw the range, so that the server is alive until we are uncounted.
            let server = unsafe { &*entry.server.load(Acquire) };
            answer(&**server, (address - start) as u64)
        };
        entry.users.fetch_sub(1, SeqCst);
        if inside {
            return served;
        }
    }
    false
}

/// Whether the fault was a store.
#[cfg(target_arch = "x86_64")]
fn store(context: *mut libc::c_void) -> Option<bool> {
    // SAFETY: with SA_SIGINFO the third argument is a whole ucontext.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    Some(error & 2 != 0)
}

/// Whether the fault was a store: other processors do not say it in a way that old kernels pass on.
#[cfg(not(target_arch = "x86_64"))]
fn store(_context: *mut libc::c_void) -> Option<bool> {
    None
}

thread_local! {
    /// Whether this thread is with who had the signal before us: a handler that was put in front of ours hands it back.
    static WITH_OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// Hands the signal to who had it before us.
fn go_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if WITH_OTHERS.replace(true) {
        return die(signal, info);
    }
    hand_over(signal, info, context);
    WITH_OTHERS.set(false);
}

/// The instruction runs again and ends the process as if no handler had ever been there; where none has to run again
/// (the signal was sent, or is of memory that no thread touched), it is sent once more.
fn die(signal: i32, info: *mut libc::siginfo_t) {
    set_default(signal);
    // SAFETY: the kernel gives a whole siginfo.
    let code = unsafe { (*info).si_code };
    if code <= 0 || code == libc::BUS_MCEERR_AO {
        // SAFETY: a plain system call. Blocked until the handler returns.
        unsafe { libc::raise(signal) };
    }
}

/// Ends the process by SIGBUS, whatever handlers it has.
pub(crate) fn end_by_sigbus() -> ! {
    set_default(libc::SIGBUS);
    // SAFETY: plain system calls; where the signal is blocked in this thread, the status says the same.
    unsafe {
        libc::raise(libc::SIGBUS);
        libc::_exit(128 + libc::SIGBUS)
    }
}

/// Takes away any handler, past the C library: a library of ours that stands before it puts the handler back.
fn set_default(signal: i32) {
    // Zeros: the default action, no flags, an empty set. The kernel's struct is smaller than this, its set one word.
    let action = [0_u64; 8];
    let none = ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel reads a struct within `action`, and writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), none, size_of::<u64>()) };
}

fn hand_over(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.load(Acquire);
    // SAFETY: set before our handler was installed, never freed.
    let before = unsafe { &*before };
    match before.sa_sigaction {
        // SAFETY: the kernel gives a whole siginfo.
        libc::SIG_IGN if unsafe { (*info).si_code } <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => die(signal, info),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed with SA_SIGINFO: this is its signature.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed without SA_SIGINFO: this is its signature.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Writes a line to standard error, in a signal handler: what was about to be touched, and why it cannot be had.
pub(crate) fn say_in_handler(parts: &[&[u8]]) {
    for part in parts {
        // SAFETY: a live slice; what cannot be said is not said.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
}
