//! `forebay man`: the manual, one page per verb, made from the same text as `--help`.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use forebay_tier::{Error, Result};
use serde::Serialize;

use crate::output::{schema, Output};

/// Write the manual pages of all verbs.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  forebay man ~/.local/share/man/man1\n  forebay man | man -l -")]
pub struct Args {
    /// Directory to write the pages in; without one, the first page is printed.
    dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Page {
    name: String,
    file: Option<String>,
    #[serde(skip)]
    text: Vec<u8>,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body<'a> {
        pages: &'a [Page],
    }
    let mut pages = Vec::new();
    let mut command = crate::command();
    // Gives every verb its full name and the options that count everywhere.
    command.build();
    collect(&command, "forebay", &mut pages)?;
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(format!("cannot create {}", dir.display()), e))?;
        for page in &mut pages {
            write(page, dir)?;
        }
    }
    out.result(schema::MAN, &Body { pages: &pages }, || match &args.dir {
        Some(_) => {
            pages.iter().filter_map(|page| page.file.as_ref()).map(|file| format!("{file}\n")).collect()
        }
        None => String::from_utf8_lossy(&pages[0].text).into_owned(),
    })?;
    if args.dir.is_none() {
        out.next("forebay man | man -l -");
    }
    Ok(0)
}

/// The page of a command and those of its verbs; hidden verbs have none.
fn collect(command: &Command, name: &str, pages: &mut Vec<Page>) -> Result<()> {
    // The page is called as it is looked up: `man forebay-app-analysis`. The synopsis keeps the blanks.
    let source = format!("Forebay {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(name.to_uppercase()).source(source).manual("Forebay Manual");
    let mut text = Vec::new();
    man.render(&mut text).map_err(|e| Error::io(format!("cannot create the manual page {name}"), e))?;
    pages.push(Page { name: name.to_string(), file: None, text });
    for verb in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        collect(verb, &format!("{name}-{}", verb.get_name()), pages)?;
    }
    Ok(())
}

fn write(page: &mut Page, dir: &Path) -> Result<()> {
    let file = dir.join(format!("{}.1", page.name));
    std::fs::write(&file, &page.text)
        .map_err(|e| Error::io(format!("could not write {}", file.display()), e))?;
    page.file = Some(file.display().to_string());
    Ok(())
}
