//! The names of channels that a running run holds, from before it looks at what is there until all is removed: of two
//! runs that start at the same moment the second is refused before it starts anything.
//!
//! A held name is an abstract socket: it is gone with the process, however that ends, and leaves no file. Guarantees:
//! one holder at a time in one network namespace. Not here: processes that open a channel without a runner, runs on
//! other nodes; what they have made is seen in the spaces themselves.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use forebay_space::{Error, Kind, Result};
use forebay_tier::checksum::crc32c;

use crate::workflow::{Channel, Workflow};

/// Names that this process holds; they are free again when it goes.
#[derive(Debug)]
pub struct HeldNames(#[allow(dead_code, reason = "held, not used")] Vec<UnixListener>);

/// Takes the names of all channels, or none.
///
/// # Errors
/// [`Kind::NameInUse`] with the process that holds one.
pub fn hold_names(workflow: &Workflow) -> Result<HeldNames> {
    let uid = rustix::process::geteuid().as_raw();
    let hold = |channel: &Channel| {
        let path = path(channel, workflow)?;
        let bytes = path.as_os_str().as_bytes();
        // A path may be longer than an address.
        let address = format!("forebay-run-{uid}-{:08x}-{}", crc32c(bytes), bytes.len());
        let address = SocketAddr::from_abstract_name(address)
            .map_err(|e| Error::io(format!("holding the name of channel {}", channel.name), e))?;
        match UnixListener::bind_addr(&address) {
            Ok(held) => Ok(held),
            Err(e) if e.kind() == ErrorKind::AddrInUse => Err(in_use(channel, &path, &address)),
            Err(e) => Err(Error::io(format!("holding the name of channel {}", channel.name), e)),
        }
    };
    workflow.channels.iter().map(hold).collect::<Result<_>>().map(HeldNames)
}

/// Where the channel is, the same for all runs that mean it.
fn path(channel: &Channel, workflow: &Workflow) -> Result<PathBuf> {
    let path = match channel.options.path {
        Some(_) => PathBuf::from(channel.location(&workflow.dir)),
        None => forebay_space::root()?.join(&channel.name),
    };
    let path = std::path::absolute(&path).map_err(|e| Error::io("finding the current directory", e))?;
    Ok(behind_links(&path))
}

/// The path without links, as far as it is there.
fn behind_links(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => path,
        (Err(_), Some(parent), Some(name)) => behind_links(parent).join(name),
        (Err(_), _, _) => path.to_owned(),
    }
}

fn in_use(channel: &Channel, path: &Path, address: &SocketAddr) -> Error {
    let error = Error::new(Kind::NameInUse, format!("another run uses the channel {}", channel.name))
        .with("path", path.display())
        .hint("let it end, or name the channel differently");
    // Where it has made the channel already, that says more.
    let made = forebay_space::inspect(&path.to_string_lossy()).ok();
    let error = match made.and_then(|space| space.run) {
        Some(run) => error.with("run", run),
        None => error,
    };
    // It may have ended just now.
    let holder = UnixStream::connect_addr(address).ok();
    match holder.and_then(|stream| rustix::net::sockopt::socket_peercred(&stream).ok()) {
        Some(holder) => error.with("pid", holder.pid),
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
    }
}
