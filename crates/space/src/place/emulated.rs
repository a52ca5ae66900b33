//! An emulated tier below a space: its first pool takes as long as a medium that is not there.
//!
//! `emulated.json` in the space's directory holds the curves, so that every process that opens the space finds the same
//! medium; the shared words of the throttle stand beside the control segment. Where a process stands, beside the medium
//! or across a link, it says itself ([`crate::OpenOptions::locality`]). Lower pools are as fast as they are.

use std::path::Path;
use std::sync::Arc;

use forebay_config::Emulation;
use forebay_tier::adapter::throttle::{Locality, Throttle};
use forebay_tier::{Device, Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::place::whole_file;

pub(crate) const FILE: &str = "emulated.json";
const SCHEMA: &str = "forebay.emulated/1";
/// Shared words of the throttle.
pub(crate) const STATE_FILE: &str = "throttle";

/// What `emulated.json` says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    emulation: Emulation,
}

/// Writes the medium of a new space into its directory.
pub(crate) fn write(emulation: &Emulation, dir: &Path, durable: bool) -> Result<()> {
    emulation.curves.check()?;
    let document = Document { schema: SCHEMA.into(), emulation: emulation.clone() };
    let text = serde_json::to_string_pretty(&document).expect("plain data");
    whole_file::replace(&dir.join(FILE), text.as_bytes(), durable)
}

/// The medium of the space in `dir`; None where it is as fast as it is.
pub(crate) fn read(dir: &Path) -> Result<Option<Emulation>> {
    let path = dir.join(FILE);
    let text = match whole_file::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("reading {}", path.display()), e)),
    };
    let unreadable =
        |kind, why: String| Err(Error::new(kind, format!("cannot parse {}: {why}", path.display())));
    match serde_json::from_slice::<Document>(&text) {
        Ok(document) if document.schema == SCHEMA => Ok(Some(document.emulation)),
        Ok(document) => unreadable(Kind::UnknownFormat, format!("its schema is {}", document.schema)),
        Err(e) => unreadable(Kind::Damaged, e.to_string()),
    }
}

/// The first pool of the space in `dir` as it was asked for at its creation. `soft_dir` holds what is shared.
pub(crate) fn around(
    device: Arc<dyn Device>,
    dir: &Path,
    soft_dir: &Path,
    locality: Locality,
) -> Result<Arc<dyn Device>> {
    Ok(match read(dir)? {
        Some(Emulation { curves, .. }) => {
            Arc::new(Throttle::new(device, curves, locality, &soft_dir.join(STATE_FILE))?)
        }
        None => device,
    })
}
