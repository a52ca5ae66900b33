//! Channels on a tier that is not there: from what the workflow file says to the curves that its programs get.
//!
//! Guarantees: all processes of a run get the same curves; where the file leaves the divisor to this machine, one is
//! chosen for all channels, and said. Not here: the throttle itself (`tier`), what a profile means for it
//! (`probe::medium`).

use std::path::Path;

use forebay_model::plan::Locality as Side;
use forebay_probe::emulated::Carried;
use forebay_probe::medium::{Medium, Wanted};
use forebay_profile::saved::Saved;
use forebay_space::{Emulation, Error, Kind, Locality, Result};
use forebay_tier::TierKind;

use crate::workflow::{Channel, Workflow};

/// Reads what a channel table says; a tier has to be named.
///
/// # Errors
/// [`Kind::Usage`].
pub fn wanted(text: &str) -> Result<Wanted> {
    let wanted: Wanted = text.parse()?;
    if wanted.tier.is_some() {
        return Ok(wanted);
    }
    Err(Error::new(Kind::Usage, format!("emulate = {text:?} names no tier"))
        .hint("PLATFORM:TIER[/K], as in \"optane-gen1:pmem/64\""))
}

/// Fills in the emulation of every channel that asks for one. Returns a line for each, for people.
///
/// # Errors
/// Those of finding the profile; [`Kind::UnknownComponent`] for a tier that it lacks; those of trying what this machine
/// carries.
pub fn settle(workflow: &mut Workflow) -> Result<Vec<String>> {
    let mut media: Vec<(usize, Wanted, Medium)> = Vec::new();
    for (index, channel) in workflow.channels.iter().enumerate() {
        let Some(text) = &channel.emulate else { continue };
        let wanted = wanted(text)?;
        let medium = medium(&wanted, &workflow.dir).map_err(|e| e.with("channel", &channel.name))?;
        media.push((index, wanted, medium));
    }
    let open: Vec<&Medium> = media.iter().filter(|(_, w, _)| w.k.is_none()).map(|(_, _, m)| m).collect();
    let chosen = match open.is_empty() {
        true => None,
        false => Some(Carried::here(&memory_dir()?)?.k(open)),
    };
    let mut lines = Vec::new();
    for (index, wanted, medium) in media {
        let Some(k) = wanted.k.or(chosen) else { continue };
        let channel = &mut workflow.channels[index];
        let of = format!("{}:{}", wanted.profile, wanted.tier.as_deref().unwrap_or_default());
        let near = near(channel);
        let place = match near {
            Side::Interleaved => "interleaved over both sides".to_owned(),
            side => format!("near its {side}"),
        };
        lines.push(format!("channel {} is emulated: {of} divided by k = {k}, {place}", channel.name));
        channel.emulation = Some(Emulation { of, k, curves: medium.slowed(k) });
    }
    Ok(lines)
}

fn medium(wanted: &Wanted, dir: &Path) -> Result<Medium> {
    let is_file = wanted.profile.contains('/') || wanted.profile.ends_with(".toml");
    let word = if is_file { dir.join(&wanted.profile).display().to_string() } else { wanted.profile.clone() };
    let profile = Saved::of_user()?.find(&word)?;
    let media = wanted.media(&profile)?;
    media
        .into_iter()
        .next()
        .map(|(_, medium)| medium)
        .ok_or_else(|| Error::new(Kind::Usage, format!("{} describes no tier", profile.name)))
}

/// Where spaces lie by default, when that is memory.
fn memory_dir() -> Result<std::path::PathBuf> {
    let root = forebay_space::make_root()?;
    match forebay_tier::detect(&root)? {
        TierKind::Dram => Ok(root),
        _ => Ok("/dev/shm".into()),
    }
}

/// Where a component stands, seen from the memory of an emulated channel.
pub fn locality(channel: &Channel, component: &str) -> Locality {
    let writes = channel.writer == component;
    match (near(channel), writes) {
        (Side::Writer, true) | (Side::Reader, false) => Locality::Local,
        (Side::Interleaved, _) => Locality::Interleaved,
        (Side::Writer, false) | (Side::Reader, true) => Locality::Remote,
    }
}

fn near(channel: &Channel) -> Side {
    channel.near.unwrap_or(Side::Writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workflow(channel: &str) -> Result<Workflow> {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[channel.c]\n{channel}\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nwrites = [\"c\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nreads = [\"c\"]\n"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/"), &text)
    }

    #[test]
    fn a_channel_gets_the_curves_of_a_published_tier() {
        let mut read = workflow("emulate = \"optane-gen1:pmem/64\"\nnear = \"reader\"").unwrap();
        let lines = settle(&mut read).unwrap();
        let wanted = "channel c is emulated: optane-gen1:pmem divided by k = 64, near its reader";
        assert_eq!(lines, [wanted]);
        let emulation = read.channels[0].emulation.as_ref().unwrap();
        assert_eq!(emulation.curves.read_bandwidth.at(24.0), Some(37.56e9 / 64.0));
        assert_eq!(locality(&read.channels[0], "sim"), Locality::Remote);
        assert_eq!(locality(&read.channels[0], "ana"), Locality::Local);
        let mut both = workflow("emulate = \"optane-gen1:pmem/64\"\nnear = \"interleaved\"").unwrap();
        assert!(settle(&mut both).unwrap()[0].ends_with("k = 64, interleaved over both sides"));
        assert_eq!(["sim", "ana"].map(|c| locality(&both.channels[0], c)), [Locality::Interleaved; 2]);
        let mut plain = workflow("").unwrap();
        assert_eq!(settle(&mut plain).unwrap(), [""; 0]);
        assert_eq!(plain.channels[0].emulation, None);
        assert_eq!(locality(&plain.channels[0], "sim"), Locality::Local);
    }

    #[test]
    fn without_a_divisor_this_machine_chooses() {
        let mut read = workflow("emulate = \"optane-gen1:pmem\"").unwrap();
        settle(&mut read).unwrap();
        assert!(read.channels[0].emulation.as_ref().unwrap().k > 1.0);
    }

    #[test]
    fn what_cannot_be_emulated_is_refused() {
        for (wrong, says) in [
            ("emulate = \"optane-gen1\"", "names no tier"),
            ("emulate = \"optane-gen1:pmem/0\"", "not a medium to emulate"),
            ("emulate = \"optane-gen1:pmem\"\nkind = \"files\"", "files"),
            ("near = \"reader\"", "near"),
        ] {
            let error = workflow(wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{wrong}: {error}");
            assert!(error.to_string().contains(says) && error.to_string().contains("w.toml:"), "{error}");
        }
        let mut unknown = workflow("emulate = \"optane-gen1:floppy/2\"").unwrap();
        assert_eq!(settle(&mut unknown).unwrap_err().kind(), Kind::UnknownComponent);
    }
}
