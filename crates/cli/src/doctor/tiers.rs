//! Checks of the spaces that are there and have several tiers: how full they are, and whether moving works.
//!
//! Guarantees: looks without joining, and makes no folder. Not here: the machine's own memory and storage.

use forebay_space::{SpaceInfo, TierInfo};

use super::machine::Machine;
use super::memory::root_of_spaces;
use super::Finding;

const CHECK: &str = "tiers-of-spaces";
/// Of the lowest tier: from here on little is left before producers feel it.
const NEARLY_FULL_PERCENT: u64 = 90;

/// Whether spaces with several tiers can spill.
pub fn spilling(machine: &Machine) -> Finding {
    if !machine.is_live() || !root_of_spaces(machine).is_dir() {
        return judge(&[]);
    }
    match forebay_space::list() {
        Ok(spaces) => judge(&spaces),
        Err(e) => Finding::note(CHECK, format!("the spaces cannot be listed: {}", e.message())),
    }
}

fn judge(spaces: &[SpaceInfo]) -> Finding {
    let failed: Vec<&SpaceInfo> = spaces.iter().filter(|s| s.moved.failed > 0).collect();
    if let Some(first) = failed.first() {
        let each = failed.iter().map(|s| format!("{}: {} moves failed", s.name, s.moved.failed));
        return Finding::warning(CHECK, each.collect::<Vec<_>>().join(", "))
            .means("data that could not be moved stay in the upper tier; producers wait for free space or get an error")
            .without_root(format!(
                "forebay ls {} names the pools; check free space and permissions there",
                first.name
            ));
    }
    let several: Vec<&SpaceInfo> = spaces.iter().filter(|s| s.tiers.len() > 1).collect();
    if several.is_empty() {
        return Finding::ok(CHECK, "no space has more than one tier");
    }
    let text = several.iter().map(|s| filled(s)).collect::<Vec<_>>().join("; ");
    let is_full = |space: &&SpaceInfo| {
        space.tiers.last().and_then(percent_of).is_some_and(|percent| percent >= NEARLY_FULL_PERCENT)
    };
    match several.into_iter().any(|space| is_full(&space)) {
        false => Finding::ok(CHECK, text),
        true => Finding::note(CHECK, text)
            .means("the lowest tier is nearly full: when it is full, producers wait, versions are dropped, or puts \
                    fail, according to when_full")
            .without_root("`forebay top` shows the slow reader; raise the quota of that tier"),
    }
}

fn percent_of(pool: &TierInfo) -> Option<u64> {
    (pool.quota_bytes > 0)
        .then(|| (u128::from(pool.reserved_bytes) * 100 / u128::from(pool.quota_bytes)) as u64)
}

/// `heat: dram 94 %, file 19 %`.
fn filled(space: &SpaceInfo) -> String {
    let each = space.tiers.iter().map(|pool| match percent_of(pool) {
        Some(percent) => format!("{} {percent} %", pool.tier),
        None => pool.tier.clone(),
    });
    format!("{}: {}", space.name, each.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;
    use crate::top::tests::busy;

    #[test]
    fn failed_moves_warn_and_a_full_lowest_tier_is_a_note() {
        assert_eq!(judge(&[]).status, Status::Ok);
        let failing = judge(&[busy("heat")]);
        assert_eq!(failing.status, Status::Warning);
        assert!(failing.found.contains("heat: 1 moves failed"), "{}", failing.found);
        let mut space = busy("heat");
        space.moved.failed = 0;
        let fine = judge(&[space.clone()]);
        assert_eq!((fine.status, fine.found.as_str()), (Status::Ok, "heat: dram 93 %, file 18 %"));
        space.tiers[1].reserved_bytes = space.tiers[1].quota_bytes;
        assert_eq!(judge(&[space.clone()]).status, Status::Note);
        space.tiers.truncate(1);
        assert_eq!(judge(&[space]).found, "no space has more than one tier");
    }
}
