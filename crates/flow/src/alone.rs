//! A workflow cut down to one component and what it reads from: to see what a step of it is made of without contention
//! (see `characterise`).
//!
//! Pure. Run serially, each component of the rest runs alone. What the component writes is not read; its versions go
//! as they come, so that it never waits for free space.

use std::collections::BTreeSet;

use forebay_config::{did_you_mean, Retention};
use forebay_space::{Error, Kind, Result};

use crate::workflow::Workflow;

/// Versions that stay of a channel without readers: the one being written and the one before.
const KEPT: Retention = Retention::Last(1);

/// The workflow with only `component` and the components that it reads from, directly or not.
///
/// # Errors
/// [`Kind::UnknownComponent`] with "did you mean".
pub fn alone(workflow: &Workflow, component: &str) -> Result<Workflow> {
    if workflow.component(component).is_none() {
        let names = workflow.components.iter().map(|c| c.name.as_str());
        let error = Error::new(Kind::UnknownComponent, format!("the workflow has no component {component}"));
        return Err(match did_you_mean(component, names.clone()) {
            Some(close) => error.hint(format!("did you mean {close}?")),
            None => error.hint(format!("available: {}", names.collect::<Vec<_>>().join(", "))),
        });
    }
    let mut wanted = BTreeSet::from([component.to_owned()]);
    loop {
        let above = workflow.channels.iter().filter(|c| c.readers.iter().any(|r| wanted.contains(r)));
        let more: Vec<String> = above.map(|c| c.writer.clone()).filter(|w| !wanted.contains(w)).collect();
        if more.is_empty() {
            break;
        }
        wanted.extend(more);
    }
    let mut rest = workflow.clone();
    rest.components.retain(|c| wanted.contains(&c.name));
    rest.channels.retain(|c| wanted.contains(&c.writer));
    for channel in &mut rest.channels {
        channel.readers.retain(|r| wanted.contains(r));
        if channel.readers.is_empty() && !channel.keep {
            channel.options.retention = Some(KEPT);
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_component_comes_with_what_it_reads_from() {
        let text = "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n[channel.v]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nreads = [\"u\"]\nwrites = [\"v\"]\n\
             [[component]]\nname = \"viz\"\ncommand = [\"true\"]\nreads = [\"v\"]\n";
        let workflow = Workflow::parse(Path::new("w.toml"), Path::new("/"), text).unwrap();
        let rest = |name: &str| {
            let rest = alone(&workflow, name).unwrap();
            let names: Vec<String> = rest.components.iter().map(|c| c.name.clone()).collect();
            let kept: Vec<Option<Retention>> = rest.channels.iter().map(|c| c.options.retention).collect();
            (names.join(" "), kept)
        };
        assert_eq!(rest("sim"), ("sim".to_owned(), vec![Some(KEPT)]));
        assert_eq!(rest("ana"), ("sim ana".to_owned(), vec![None, Some(KEPT)]));
        assert_eq!(rest("viz").0, "sim ana viz");
        assert_eq!(alone(&workflow, "simm").unwrap_err().hint_text(), Some("did you mean sim?"));
    }
}
