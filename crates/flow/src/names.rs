//! The names of channels that a running run holds, from before it looks at what is there until all is removed: of two
//! runs that start at the same moment the second is refused before it starts anything.
//!
//! A held name is an abstract socket: it is gone with the process, however that ends, and leaves no file. Guarantees:
//! one holder at a time of one user in one network namespace. A socket of another user holds nothing back. Not here:
//! processes that open a channel without a runner, runs on other nodes; what they have made is seen in the spaces
//! themselves.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_space::{Error, Kind, Result};
use forebay_tier::checksum::crc32c;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::workflow::{Channel, Workflow};

/// Bytes of an abstract name.
const NAME_BYTES_MAX: usize = 107;

/// Looks at a holder that is just ending, 10 ms apart.
const TRIES: u32 = 10;

/// How long the error looks for the run in the channel.
const GLANCE: Duration = Duration::from_secs(1);

/// Names that this process holds; they are free again when it goes.
#[derive(Debug)]
pub struct HeldNames {
    _sockets: Vec<UnixListener>,
}

/// Takes the names of all channels, or none.
///
/// # Errors
/// [`Kind::NameInUse`] with the process that holds one; [`Kind::Usage`] where two channels are one.
pub fn hold_names(workflow: &Workflow) -> Result<HeldNames> {
    // In the order of the names: of two runs that want several, one gets them all.
    let mut wanted = BTreeMap::new();
    for channel in &workflow.channels {
        let path = path(channel, workflow)?;
        if let Some((other, _)) = wanted.insert(name(&path), (channel, path)) {
            let what = format!("the channels {} and {} are in one place", other.name, channel.name);
            return Err(Error::new(Kind::Usage, what).hint("give each a path of its own"));
        }
    }
    let mut held = Vec::new();
    for (name, (channel, path)) in wanted {
        held.extend(hold(&name, channel, &path)?);
    }
    Ok(HeldNames { _sockets: held })
}

/// Where the channel is, the same for all runs that mean it: without links, as far as it is there.
fn path(channel: &Channel, workflow: &Workflow) -> Result<PathBuf> {
    let path = match channel.options.path {
        Some(_) => PathBuf::from(channel.location(&workflow.dir)),
        None => forebay_space::make_root()?.join(&channel.name),
    };
    let path = std::path::absolute(&path).map_err(|e| Error::io("finding the current directory", e))?;
    Ok(behind_links(&path))
}

fn behind_links(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => path,
        (Err(_), Some(parent), Some(name)) => behind_links(parent).join(name),
        (Err(_), _, _) => path.to_owned(),
    }
}

/// The name of a place. The folder that the channel lies in is part of it by its number: two file systems that are
/// mounted in one place do not meet.
fn name(path: &Path) -> Vec<u8> {
    let uid = rustix::process::geteuid().as_raw();
    let folder = path.parent().and_then(|folder| folder.metadata().ok());
    let folder = folder.map_or((0, 0), |folder| (folder.dev(), folder.ino()));
    let mut name = format!("forebay-run-{uid}-{:x}-{:x}-", folder.0, folder.1).into_bytes();
    let bytes = path.as_os_str().as_bytes();
    match name.len() + bytes.len() <= NAME_BYTES_MAX {
        true => name.extend(bytes),
        false => {
            name.extend(format!("{:08x}-{}-", crc32c(bytes), bytes.len()).into_bytes());
            let rest = NAME_BYTES_MAX - name.len();
            name.extend(&bytes[bytes.len() - rest.min(bytes.len())..]);
        }
    }
    name
}

/// Holds one name; None: a socket of another user has the name, and no run of this user.
fn hold(name: &[u8], channel: &Channel, path: &Path) -> Result<Option<UnixListener>> {
    let failed = |e| Error::io(format!("holding the name of channel {}", channel.name), e);
    let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
    for _ in 0..TRIES {
        match UnixListener::bind_addr(&address) {
            Ok(held) => return Ok(Some(held)),
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            Err(e) => return Err(failed(e)),
        }
        match holder(name) {
            Holder::Ours(pid) => return Err(in_use(channel, path, pid)),
            Holder::Other => return Ok(None),
            Holder::Gone => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    // It does not listen, as each of ours does.
    Ok(None)
}

enum Holder {
    /// A process of this user; None: which one cannot be told.
    Ours(Option<i32>),
    /// A process of another user.
    Other,
    /// No process listens: it is ending, or has never listened.
    Gone,
}

/// Who holds a name. Does not wait.
fn holder(name: &[u8]) -> Holder {
    let socket = || -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(socket)
    };
    match socket() {
        Ok(socket) => match rustix::net::sockopt::socket_peercred(&socket) {
            Ok(peer) if peer.uid == rustix::process::geteuid() => {
                Holder::Ours(Some(peer.pid.as_raw_nonzero().get()))
            }
            Ok(_) => Holder::Other,
            Err(_) => Holder::Ours(None),
        },
        // Its queue of connections is full.
        Err(rustix::io::Errno::AGAIN) => Holder::Ours(None),
        Err(_) => Holder::Gone,
    }
}

fn in_use(channel: &Channel, path: &Path, pid: Option<i32>) -> Error {
    let error = Error::new(Kind::NameInUse, format!("another run uses the channel {}", channel.name))
        .with("path", path.display())
        .hint("let it end, or name the channel differently");
    // Where it has made the channel already, the channel names its run.
    let made = forebay_space::glance_within(&path.to_string_lossy(), GLANCE);
    let error = match made.ok().and_then(|space| space.run) {
        Some(run) => error.with("run", run),
        None => error,
    };
    match pid {
        Some(pid) => error.with("pid", pid),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_holder_and_is_free_afterwards() {
        let text = "forebay = 1\n[workflow]\nname = \"x\"\n[channel.c]\npath = \"here/it\"\n\
                    [[component]]\nname = \"a\"\ncommand = [\"true\"]\nwrites = [\"c\"]\n";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("workflow.toml");
        std::fs::write(&file, text).unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        std::os::unix::fs::symlink("there", dir.path().join("here")).unwrap();
        let workflow = Workflow::read(&file).unwrap();
        let held = hold_names(&workflow).unwrap();
        std::fs::write(&file, text.replace("here/it", "there/it")).unwrap();
        let other = Workflow::read(&file).unwrap();
        let error = hold_names(&other).unwrap_err();
        assert_eq!(error.kind(), Kind::NameInUse);
        assert!(error.to_string().contains(&format!("pid={}", std::process::id())), "{error}");
        drop(held);
        hold_names(&other).unwrap();
        let text = text.replace("[[component]]", "[channel.d]\npath = \"there/it\"\n[[component]]");
        std::fs::write(&file, text.replace("[\"c\"]", "[\"c\", \"d\"]")).unwrap();
        let twice = Workflow::read(&file).and_then(|workflow| hold_names(&workflow)).unwrap_err();
        assert!(twice.kind() == Kind::Usage && twice.to_string().contains("c and d"), "{twice}");
    }
}
