//! `forebay probe ls`: saved profiles and platforms.

use comfy_table::Cell;
use forebay_profile::{platforms, saved::Saved, Profile};
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{schema, table_text, toned, Output, Tone};
use forebay_profile::words::kinds;

/// List saved profiles and the platforms that come with Forebay.
#[derive(clap::Args, Debug)]
pub struct Args {}

#[derive(Serialize)]
struct Body {
    folder: String,
    profiles: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    platform: bool,
    kinds: Vec<String>,
    date: Option<String>,
    title: Option<String>,
    tiers: Vec<String>,
    error: Option<String>,
}

/// Runs the verb. A saved file that cannot be read is listed with its error.
pub fn run(_: &Args, out: &Output) -> Result<i32> {
    let saved = Saved::of_user()?;
    let own = saved.names()?.into_iter().map(|name| entry(&name, false, saved.read(&name)));
    let shipped = platforms::names().map(|name| entry(name, true, platforms::platform(name)));
    let profiles: Vec<Entry> = own.chain(shipped).collect();
    let body = Body { folder: saved.dir().display().to_string(), profiles };
    out.result(schema::PROFILES, &body, || {
        let mut table = out.table(&["NAME", "NUMBERS", "DATE", "TIERS", "WHAT"]);
        for entry in &body.profiles {
            let what = match &entry.error {
                Some(error) => toned(error, Tone::Bad),
                None => Cell::new(entry.title.as_deref().unwrap_or("")),
            };
            table.add_row(vec![
                Cell::new(&entry.name),
                Cell::new(entry.kinds.join(", ")),
                Cell::new(entry.date.as_deref().map_or("", |d| d.get(..10).unwrap_or(d))),
                Cell::new(entry.tiers.join(", ")),
                what,
            ]);
        }
        table_text(&table)
    })?;
    out.next("forebay probe show optane-gen1");
    Ok(0)
}

fn entry(name: &str, platform: bool, profile: Result<Profile>) -> Entry {
    let mut entry = Entry {
        name: name.to_owned(),
        platform,
        kinds: Vec::new(),
        date: None,
        title: None,
        tiers: Vec::new(),
        error: None,
    };
    match profile {
        Ok(profile) => {
            entry.kinds = kinds(&profile).iter().map(ToString::to_string).collect();
            entry.tiers = profile.tiers.iter().map(|t| t.name.clone()).collect();
            entry.date = Some(profile.date);
            entry.title = profile.title;
        }
        Err(e) => entry.error = Some(format!("{}: {}", e.kind(), e.message())),
    }
    entry
}
