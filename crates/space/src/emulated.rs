//! An emulated tier below a space: its first pool takes as long as a medium that is not there.
//!
//! `emulated.json` in the space's directory holds the curves, so that every process that opens the space finds the same
//! medium; the shared words of the throttle stand beside the control segment. Where a process stands, beside the medium
//! or across a link, it says itself ([`crate::OpenOptions::locality`]). Lower pools are as fast as they are.

use std::path::Path;
use std::sync::Arc;

use forebay_tier::adapter::throttle::{Curves, Locality, Throttle};
use forebay_tier::{Device, Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::options::refuse;
use crate::whole_file;

pub(crate) const FILE: &str = "emulated.json";
const SCHEMA: &str = "forebay.emulated/1";
/// Shared words of the throttle.
pub(crate) const STATE_FILE: &str = "throttle";

/// A medium to emulate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulation {
    /// What it is, for people: `optane-gen1:pmem`.
    pub of: String,
    /// By how much it is slower than that.
    pub k: f64,
    /// Its curves, divided by k already.
    pub curves: Curves,
}

/// What `emulated.json` says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    emulation: Emulation,
}

impl Emulation {
    /// Writes it into the directory of a new space.
    pub(crate) fn write(&self, dir: &Path, durable: bool) -> Result<()> {
        self.curves.check()?;
        let document = Document { schema: SCHEMA.into(), emulation: self.clone() };
        let text = serde_json::to_string_pretty(&document).expect("plain data");
        whole_file::replace(&dir.join(FILE), text.as_bytes(), durable)
    }

    /// That of the space in `dir`; None where it is as fast as it is.
    pub(crate) fn read(dir: &Path) -> Result<Option<Emulation>> {
        let path = dir.join(FILE);
        let text = match whole_file::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(format!("reading {}", path.display()), e)),
        };
        let unreadable =
            |kind, why: String| Err(Error::new(kind, format!("{} cannot be read: {why}", path.display())));
        match serde_json::from_slice::<Document>(&text) {
            Ok(document) if document.schema == SCHEMA => Ok(Some(document.emulation)),
            Ok(document) => unreadable(Kind::UnknownFormat, format!("its schema is {}", document.schema)),
            Err(e) => unreadable(Kind::Damaged, e.to_string()),
        }
    }
}

/// The first pool of the space in `dir` as it was asked for at its creation. `soft_dir` holds what is shared.
pub(crate) fn around(
    device: Arc<dyn Device>,
    dir: &Path,
    soft_dir: &Path,
    locality: Locality,
) -> Result<Arc<dyn Device>> {
    Ok(match Emulation::read(dir)? {
        Some(Emulation { curves, .. }) => {
            Arc::new(Throttle::new(device, curves, locality, &soft_dir.join(STATE_FILE))?)
        }
        None => device,
    })
}

/// Reads where a process stands: `local`, `remote`, or `interleaved` (half of the bytes beside it, half across).
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_locality(text: &str) -> Result<Locality> {
    match text {
        "local" => Ok(Locality::Local),
        "remote" => Ok(Locality::Remote),
        "interleaved" => Ok(Locality::Interleaved),
        _ => Err(refuse("locality", text, "local | remote | interleaved")),
    }
}
