//! `forebay bench fio`: fio's jobs, by fio's own command line and job files.
//!
//! Guarantees: an option that is not known is an error before anything is touched; files are kept unless a job says
//! `unlink`; Ctrl-C ends the jobs, and what they did until then is printed. Does not: trims, other operating systems'
//! engines. The load itself is made by `forebay_perf::load`.

mod arguments;
#[cfg(test)]
mod effect_tests;
mod iolog;
mod job_file;
mod jobs;
mod json;
#[cfg(test)]
mod option_tests;
mod options;
mod settings;
mod terse;
mod text;
mod values;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use forebay_perf::load::{self, DeviceUse, Job, Progress, Report};
use forebay_tier::{Error, Kind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::{schema, Output};
use arguments::{Asked, Eta};
use job_file::Word;
use jobs::Planned;
use settings::Settings;

/// Run fio's jobs: its options and job files, its output.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  forebay bench fio --name=a --rw=randread --size=1g --direct=1 --ioengine=io_uring --iodepth=16
  forebay bench fio --output-format=json --output=result.json jobs.fio
  forebay bench fio --cmdhelp          # the options that it knows")]
pub struct Args {
    /// fio's options and job files; `forebay bench fio --cmdhelp` lists the options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FIO'S WORDS")]
    words: Vec<String>,
}

/// Jobs that are reported together.
pub struct Entry<'a> {
    pub name: &'a str,
    pub group: usize,
    pub report: Report,
    pub settings: &'a Settings,
    pub words: &'a [Word],
}

/// Everything that is printed.
pub struct Results<'a> {
    pub entries: Vec<Entry<'a>>,
    pub global_words: &'a [Word],
    pub devices: Vec<DeviceUse>,
    /// Nanoseconds since 1970 when the jobs had ended.
    pub ended_ns: u64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let mut asked = arguments::read(&args.words)?;
    asked.document |= out.json();
    if let Some(name) = &asked.help {
        return help(name.as_deref(), out);
    }
    let (planned, global_words) = jobs::plan(&asked.sections)?;
    if let Some(writer) = planned.iter().find(|planned| asked.read_only && planned.job.writes) {
        return Err(
            Error::new(Kind::Usage, "--readonly, and a job that writes").with("job", &writer.job.name)
        );
    }
    if asked.parse_only {
        return Ok(0);
    }
    note_engines(&planned, &global_words, out);
    let jobs: Vec<Job> = planned.iter().map(|planned| planned.job.clone()).collect();
    let signals = Signals::catch()?;
    let shown = match asked.eta {
        Eta::Always => true,
        Eta::Never => false,
        Eta::Auto => std::io::stderr().is_terminal() && !asked.document,
    };
    let mut watch = |progress: &Progress| {
        if shown {
            show(progress, jobs.len());
        }
    };
    let outcome = load::run(&jobs, &signals.stop, &mut watch)?;
    if shown {
        eprint!("\r\x1b[K");
    }
    let failure = outcome.reports.iter().find_map(|report| report.failure.clone());
    note_cached(&jobs, &outcome, out);
    for (planned, report) in planned.iter().zip(&outcome.reports) {
        if let Some(path) = &planned.settings.iolog {
            iolog::write(path, &planned.job, &report.requests)?;
        }
    }
    let results = Results {
        entries: entries(&planned, outcome.reports),
        global_words: &global_words,
        devices: if planned.iter().all(|planned| planned.settings.shown.devices) {
            outcome.devices
        } else {
            Vec::new()
        },
        ended_ns: forebay_tier::clock::realtime_ns(),
    };
    print(&asked, &results, out)?;
    if let Some(failure) = &failure {
        out.aside(&format!("error: {}: {}", failure.kind, failure.what));
    }
    Ok(match (signals.last(), failure) {
        (0, None) => 0,
        (0, Some(failure)) => failure.kind.exit_code(),
        (signal, _) => 128 + signal as i32,
    })
}

/// One report a job, or one a group.
fn entries(planned: &[Planned], reports: Vec<Report>) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut held: Vec<Vec<Report>> = Vec::new();
    for (planned, report) in planned.iter().zip(reports) {
        let joins = entries
            .last()
            .is_some_and(|last| last.group == planned.group && planned.settings.group_reporting);
        match held.last_mut().filter(|_| joins) {
            Some(together) => together.push(report),
            None => {
                held.push(vec![report]);
                entries.push(Entry {
                    name: &planned.job.name,
                    group: planned.group,
                    report: Report::default(),
                    settings: &planned.settings,
                    words: &planned.words,
                });
            }
        }
    }
    for (entry, reports) in entries.iter_mut().zip(held) {
        entry.report = Report::merge(&reports);
    }
    entries
}

fn print(asked: &Asked, results: &Results<'_>, out: &Output) -> Result<()> {
    let mut text = String::new();
    if asked.formats.json {
        let document = json::document(results, asked.formats.classes);
        text += &serde_json::to_string_pretty(&document)
            .map_err(|e| Error::new(Kind::Internal, format!("a result is no JSON: {e}")))?;
        text += "\n";
    }
    if asked.formats.terse {
        text += &terse::text(results);
    }
    if asked.formats.normal {
        text += &text::text(results);
    }
    if let Some(path) = &asked.output {
        write(path, &text)?;
    }
    match (asked.document, &asked.output) {
        (true, _) => out.document(schema::BENCH_FIO, &json::document(results, asked.formats.classes)),
        (false, None) => out.text(&text),
        (false, Some(_)) => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
}

/// Says, once a section, where another engine does the work of the one that was named.
fn note_engines(planned: &[Planned], global_words: &[Word], out: &Output) {
    let mut notes: Vec<String> = Vec::new();
    for planned in planned {
        let name = &planned.job.name;
        let words = global_words.iter().chain(&planned.words).rev();
        let named = words.filter(|word| word.name == "ioengine").find_map(|word| word.value.as_deref());
        if let Some(named @ ("libaio" | "posixaio")) = named {
            notes.push(format!("note: {name}: io_uring takes the place of {named}"));
        }
        if !matches!(planned.job.engine, load::Engine::IoUring(_)) && planned.job.depth > 1 {
            notes.push(format!(
                "note: {name}: this engine makes one request at a time, whatever iodepth says"
            ));
        }
    }
    notes.dedup();
    notes.iter().for_each(|note| out.aside(note));
}

/// Says when direct reads were answered by something else than the device.
fn note_cached(jobs: &[Job], outcome: &load::Outcome, out: &Output) {
    let direct = |(job, report): (&Job, &Report)| if job.direct { report.read.bytes } else { 0 };
    let read: u64 = jobs.iter().zip(&outcome.reports).map(direct).sum();
    let Some(moved) = outcome.moved.filter(|_| read > 0 && !outcome.devices.is_empty()) else { return };
    // A tenth is left for what the kernel accounts to others.
    if moved.read_bytes < read / 10 * 9 {
        out.aside(&format!(
            "warning: {read} bytes were read directly, but devices delivered {}: the rest came from a cache",
            moved.read_bytes
        ));
    }
}

fn show(progress: &Progress, jobs: usize) {
    let seconds = progress.elapsed_ns / 1_000_000_000;
    let [read, written] = progress.bytes.map(text::bytes);
    let _ = write!(
        std::io::stderr().lock(),
        "\r\x1b[K{}/{jobs} jobs run, {} ended, {seconds} s: read {read}, written {written}",
        progress.running,
        progress.ended
    );
}

fn help(name: Option<&str>, out: &Output) -> Result<i32> {
    let wanted = name
        .map(|name| options::find(name).ok_or_else(|| options::unknown(name, "--cmdhelp")))
        .transpose()?;
    let mut table = out.table(&["OPTION", "MEANING"]);
    for known in options::OPTIONS.iter().filter(|known| wanted.is_none_or(|wanted| wanted.name == known.name))
    {
        let names = std::iter::once(&known.name).chain(known.others).copied().collect::<Vec<_>>().join(", ");
        table.add_row(vec![names, known.what.to_string()]);
    }
    out.text(&crate::output::table_text(&table))?;
    Ok(0)
}

/// SIGINT, SIGTERM and SIGHUP end the jobs; a second one ends the command at once. Those that were ignored at the start
/// (nohup, background jobs of a script) stay ignored.
struct Signals {
    stop: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
    ids: Vec<signal_hook::SigId>,
}

impl Signals {
    fn catch() -> Result<Signals> {
        let failed = |e| Error::io("installing signal handlers", e);
        let (stop, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut ids = Vec::new();
        let ignored = forebay_flow::ignored_signals();
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|s| ignored & (1 << (s - 1)) == 0) {
            let again = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone());
            ids.push(again.map_err(failed)?);
            ids.push(
                signal_hook::flag::register_usize(signal, last.clone(), signal as usize).map_err(failed)?,
            );
            ids.push(signal_hook::flag::register(signal, stop.clone()).map_err(failed)?);
        }
        Ok(Signals { stop, last, ids })
    }

    fn last(&self) -> usize {
        self.last.load(Ordering::SeqCst)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.ids.drain(..).for_each(|id| {
            signal_hook::low_level::unregister(id);
        });
    }
}
