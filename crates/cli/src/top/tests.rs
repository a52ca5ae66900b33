//! The live view drawn into memory and compared letter by letter, and once on a terminal of its own.
//!
//! `TRYCMD=overwrite cargo test -p forebay-cli` writes the pictures in `tests/screens` anew.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forebay_space::{
    AgentStatus, Error, GroupInfo, Kind, MemberInfo, MirrorStatus, MovedInfo, ReaderGroupInfo, Result,
    SpaceInfo, TierInfo,
};
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use ratatui::Terminal;

use super::draw::{bar, draw, duration};
use super::keys::Key;
use super::look::{shortened, Asked, Look};
use super::view::{Sort, View, Wish};
use crate::command::looks::NodeLook;

const S: u64 = 1_000_000_000;
const NOW: u64 = 1_000_000 * S;

fn member(role: &str, component: &str, rank: u32, size: u32) -> MemberInfo {
    MemberInfo {
        role: role.into(),
        component: component.into(),
        rank,
        size,
        pid: 100 + rank,
        host: "node1".into(),
        alive: true,
        since_unix_ns: NOW - 100 * S,
        version: 15,
        steps: 15,
        bytes: 3 << 30,
        op_ns: 20 * S,
        wait_ns: 45 * S,
        waiting_for: None,
        waiting_since_unix_ns: None,
        lease: None,
    }
}

fn waiting(member: MemberInfo, since_s: u64, what: &str) -> MemberInfo {
    let waiting_since_unix_ns = Some(NOW - since_s * S);
    MemberInfo { waiting_for: Some(what.into()), waiting_since_unix_ns, ..member }
}

/// Four writers, of which one waits for free space, and two readers at different versions; two tiers.
pub(crate) fn busy(name: &str) -> SpaceInfo {
    let mut members: Vec<MemberInfo> = (0..4).map(|rank| member("writer", "gray-scott", rank, 4)).collect();
    let held =
        "space for version 15: reader rank 1 of analysis (pid 101, since 100 s) has not released version 9";
    members[2] = waiting(members[2].clone(), 3, held);
    members.extend((0..2).map(|rank| MemberInfo { bytes: 2 << 30, ..member("reader", "analysis", rank, 2) }));
    members[5].alive = false;
    let tier = |tier: &str, used_bytes, quota_bytes| TierInfo {
        tier: tier.into(),
        path: "/pool".into(),
        quota_bytes,
        used_bytes,
        reserved_bytes: used_bytes,
    };
    SpaceInfo {
        name: name.into(),
        path: format!("/dev/shm/forebay-0/{name}").into(),
        uuid: format!("uuid of {name}"),
        tier: "dram".into(),
        horizon: "none".into(),
        durability: "process crash".into(),
        retention: "released".into(),
        execution_mode: "parallel".into(),
        checksum: true,
        quota_bytes: 1 << 30,
        used_bytes: 960 << 20,
        reserved_bytes: 960 << 20,
        segment_bytes: 64 << 20,
        versions_oldest: 9,
        versions_complete: 15,
        state: "open".into(),
        run: None,
        host: "node1".into(),
        created_unix_ns: NOW - 100 * S,
        producer: Some(GroupInfo {
            component: "gray-scott".into(),
            size: 4,
            incarnation: 1,
            joined: 4,
            closed: 0,
        }),
        readers: vec![ReaderGroupInfo {
            name: "analysis".into(),
            size: 2,
            joined: 2,
            ended: 0,
            version_min: Some(9),
            oldest_unread: Some(9),
            lag_versions: 6,
            absent: None,
        }],
        oldest_unread: Some(9),
        members,
        tiers: vec![tier("dram", 960 << 20, 1 << 30), tier("file", 3 << 30, 16 << 30)],
        moved: MovedInfo {
            spilled_bytes: 3 << 30,
            promoted_bytes: 512 << 20,
            failed: 1,
            dropped_versions: 0,
        },
        versions: Vec::new(),
    }
}

fn quiet(name: &str, used_bytes: u64) -> SpaceInfo {
    let reserved_bytes = used_bytes;
    let (tier, path) = ("dram".into(), "/pool".into());
    let pool = TierInfo { tier, path, quota_bytes: 1 << 30, used_bytes, reserved_bytes };
    SpaceInfo {
        state: "finished".into(),
        readers: Vec::new(),
        members: Vec::new(),
        oldest_unread: None,
        tiers: vec![pool],
        moved: MovedInfo::default(),
        ..busy(name)
    }
}

/// These spaces, looked at `at_s` seconds after the first look.
fn look(spaces: Vec<SpaceInfo>, at_s: u64, before: Option<&Look>) -> Look {
    let root = "/dev/shm/forebay-0".into();
    Look::of(spaces, before, Look { root, unix_ns: NOW, at_ns: at_s * S, ..Look::default() })
}

fn view(spaces: Vec<SpaceInfo>) -> View {
    View::new(look(spaces, 0, None), Vec::new(), Duration::from_secs(1), false)
}

fn terminal(view: &mut View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal
}

fn picture(view: &mut View, width: u16, height: u16) -> String {
    let terminal = terminal(view, width, height);
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_string() + "\n").collect()
}

/// Compares with the picture in `tests/screens`.
#[track_caller]
fn is_as_recorded(name: &str, picture: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/screens/{name}.txt"));
    if std::env::var_os("TRYCMD").is_some_and(|v| v == "overwrite") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, picture).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(picture == recorded, "{name} looks like\n{picture}\nand not like\n{recorded}");
}

#[test]
fn nothing_there_says_what_to_do() {
    is_as_recorded("empty", &picture(&mut view(Vec::new()), 80, 24));
    let mut named = view(Vec::new());
    named.names = vec!["heat".into()];
    assert!(picture(&mut named, 80, 24).contains("Not there: heat."));
}

#[test]
fn one_space_shows_who_waits_for_whom() {
    let first = look(vec![busy("gray-scott")], 0, None);
    let mut later = busy("gray-scott");
    for member in later.members.iter_mut().take(4) {
        member.bytes += 512 << 20;
    }
    later.members[4].bytes += 100 << 20;
    let second = look(vec![later], 2, Some(&first));
    let mut view = view(Vec::new());
    view.show(first);
    is_as_recorded("one-first", &picture(&mut view, 80, 24));
    view.show(second);
    is_as_recorded("one-second", &picture(&mut view, 80, 24));
    is_as_recorded("one-wide", &picture(&mut view, 132, 30));
    // A low terminal hides the end of the details and says so; they can be scrolled to their end, no further.
    for _ in 0..20 {
        view.press(Key::PageDown);
    }
    let end = picture(&mut view, 80, 18);
    assert!(end.contains("reader analysis 1/2") && !end.contains("more lines below"), "{end}");
}

#[test]
fn many_spaces_scroll_and_keep_the_selected_one() {
    let all = || (0..40).map(|i| quiet(&format!("space-{i:02}"), i << 20)).collect::<Vec<_>>();
    let mut view = view(all());
    for _ in 0..30 {
        view.press(Key::Down);
    }
    is_as_recorded("many", &picture(&mut view, 80, 24));
    // Another order, another neighbourhood; the selected space stays.
    view.press(Key::Char('s'));
    view.press(Key::Char('s'));
    view.press(Key::Char('s'));
    assert_eq!(view.sort, Sort::Fill);
    assert_eq!(view.look.spaces[0].space.name, "space-39");
    assert_eq!(view.current().unwrap().space.name, "space-30");
    // It goes: no error, and its neighbour is selected.
    let left = all().into_iter().filter(|s| s.name != "space-30").collect();
    let next = look(left, 1, Some(&view.look));
    view.show(next);
    assert_eq!(view.current().unwrap().space.name, "space-29");
    view.show(look(Vec::new(), 2, None));
    assert!(view.current().is_none() && picture(&mut view, 80, 24).contains("No spaces"));
}

#[test]
fn every_size_of_terminal_is_drawn() {
    let mut view = view(vec![busy("gray-scott"), quiet("a-name-that-is-rather-long-for-a-column", 5)]);
    is_as_recorded("narrow", &picture(&mut view, 40, 20));
    for (width, height) in [(1, 1), (2, 50), (200, 3), (10, 5), (79, 23), (300, 100)] {
        picture(&mut view, width, height);
    }
}

#[test]
fn a_damaged_space_and_trouble_are_shown() {
    let damaged = SpaceInfo { state: "unreadable: Damaged".into(), ..quiet("broken", 0) };
    let mut view = view(vec![damaged]);
    view.trouble = Some("listing failed".into());
    let text = picture(&mut view, 80, 24);
    assert!(text.contains("unreadable: Damaged") && text.contains("listing failed"), "{text}");
}

#[test]
fn colours_only_where_they_are_wanted() {
    let mut view = view(vec![busy("gray-scott")]);
    let colours = |view: &mut View| {
        let terminal = terminal(view, 80, 24);
        let cells = terminal.backend().buffer().content().to_vec();
        cells.iter().filter(|c| c.fg != Color::Reset || c.bg != Color::Reset).count()
    };
    assert_eq!(colours(&mut view), 0);
    view.colour = true;
    assert!(colours(&mut view) > 0);
}

/// What two nodes have answered, and a third has not: a space and its copy.
fn answers(bytes: u64, unix_ns: u64) -> Vec<Result<NodeLook>> {
    let look =
        |space: SpaceInfo, agent| NodeLook { spaces: vec![space], unix_ns, agent, ..NodeLook::default() };
    let mut written = busy("heat");
    written.members[0].bytes += bytes;
    let mirror = MirrorStatus {
        space: "heat".into(),
        from: "n0".into(),
        state: "copying".into(),
        versions: 15,
        bytes: 3 << 30,
    };
    let agent = AgentStatus {
        node: "n1".into(),
        incarnation: 1,
        state: "ready".into(),
        pid: 7,
        missing: Vec::new(),
        mirrors: vec![mirror],
        served: Vec::new(),
        bytes_sent: 0,
    };
    let failed = Err(Error::new(Kind::TimedOut, "timeout while waiting for a node"));
    vec![Ok(look(written, None)), Ok(look(quiet("heat", 5 << 20), Some(agent))), failed]
}

#[test]
fn several_nodes_are_one_table_and_keep_their_own_time() {
    let nodes = ["n0", "n1", "n2"].map(String::from);
    let mut known = BTreeMap::new();
    let first = Look::of_nodes(&nodes, answers(0, NOW), &mut known);
    assert_eq!(first.spaces[0].in_bytes_per_s, None);
    let mut view = view(Vec::new());
    view.show(Look {
        nodes: Some(Asked { count: 3, is_first: true, ..Asked::default() }),
        ..Look::default()
    });
    assert!(picture(&mut view, 80, 24).contains("Waiting for the answers of the nodes."));
    view.show(first);
    // Its clock has gone on by two seconds, however long the command took to start there.
    view.show(Look::of_nodes(&nodes, answers(512 << 20, NOW + 2 * S), &mut known));
    assert_eq!(view.look.spaces[0].in_bytes_per_s, Some((256 << 20) as f64));
    view.press(Key::Down);
    is_as_recorded("nodes", &picture(&mut view, 100, 24));
    assert_eq!(view.current().unwrap().node.as_deref(), Some("n1"));
    // The one that is selected stays so when another one of its name goes.
    let only = answers(0, NOW + 3 * S).into_iter().skip(1).take(1).collect();
    view.show(Look::of_nodes(&nodes[1..2], only, &mut known));
    assert_eq!((view.selected, view.current().unwrap().node.as_deref()), (0, Some("n1")));
    for width in [10, 20, 30, 40, 60, 200] {
        picture(&mut view, width, 20);
    }
}

#[test]
fn rates_need_two_looks_and_are_never_negative() {
    let first = look(vec![busy("a")], 0, None);
    assert_eq!((first.spaces[0].in_bytes_per_s, first.spaces[0].out_bytes_per_s), (None, None));
    let mut later = busy("a");
    later.members[0].bytes += 1000;
    // A rank that was started again counts from nothing, and one that left takes nothing away.
    later.members[1] = MemberInfo { pid: 999, bytes: 500, ..later.members[1].clone() };
    later.members.truncate(5);
    later.members[4].bytes -= 7;
    let second = look(vec![later, busy("new")], 2, Some(&first));
    assert_eq!((second.spaces[0].in_bytes_per_s, second.spaces[0].out_bytes_per_s), (Some(750.0), Some(0.0)));
    assert_eq!(second.spaces[1].in_bytes_per_s, Some((12_u64 << 30) as f64 / 2.0));
    // The dead reader waits for nothing; the writer's wait says how long.
    assert_eq!(second.spaces[1].waits.len(), 1);
    assert_eq!(second.spaces[1].waits[0].waited_ns, 3 * S);
}

#[test]
fn keys_do_what_the_last_line_says() {
    let mut view = view(vec![quiet("a", 1), quiet("b", 2)]);
    let mut press = |code| view.press(code);
    assert_eq!(press(Key::Char('q')), Wish::End);
    assert_eq!(press(Key::Char('p')), Wish::Draw);
    assert_eq!(press(Key::Char('p')), Wish::Look);
    assert_eq!(press(Key::Char('r')), Wish::Look);
    press(Key::Down);
    press(Key::Down);
    assert_eq!(view.selected, 1);
    view.press(Key::Home);
    assert_eq!(view.selected, 0);
    assert_eq!((view.press(Key::Control('c')), view.press(Key::Control('z'))), (Wish::End, Wish::Suspend));
}

#[test]
fn long_lists_of_names_are_cut() {
    let ranks = |n| (0..n).map(|rank| format!("writer rank {rank}")).collect::<Vec<_>>().join("; ");
    assert_eq!(shortened(&ranks(3)), ranks(3));
    assert_eq!(shortened(&ranks(5)), format!("{} and 2 more", ranks(3)));
}

#[test]
fn bars_and_durations_read_well() {
    assert_eq!(bar(0.5, 4), "██░░");
    assert_eq!(bar(0.53125, 4), "██▏░");
    assert_eq!((bar(0.0, 3), bar(1.7, 3), bar(f64::NAN, 2)), ("░░░".into(), "███".into(), "░░".into()));
    assert_eq!(bar(0.999, 1), "█");
    for (ns, text) in [(5_000_000, "5 ms"), (2 * S + 340_000_000, "2.3 s"), (125 * S, "2 min 5 s")] {
        assert_eq!(duration(ns), text);
    }
    assert_eq!(duration(7264 * S), "2 h 1 min");
}

mod on_a_terminal {
    //! A pseudo-terminal of 24 by 80 for a process of its own: this test program, started again.

    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::process::{kill_process, Pid, Signal};
    use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
    use rustix::termios::{tcgetattr, tcsetwinsize, LocalModes, Winsize};

    use crate::top::screen::Screen;

    const ENTER: &str = "\x1b[?1049h";
    const LEAVE: &str = "\x1b[?1049l";

    /// A launcher that does not end when it is asked to, nor does what it has started.
    const STUBBORN: &str = "trap '' TERM; sleep 1000 & echo $! $$ > \"$0.pid\"; wait; sleep 1000\n";

    /// The program: `forebay top`, or one that panics while it has the terminal.
    #[test]
    #[ignore = "a program for other tests"]
    fn program() {
        match std::env::var("TEST_TOP").as_deref() {
            Ok("top") => std::process::exit(crate::main_with(vec!["forebay".into(), "top".into()])),
            Ok("nodes") => {
                let launch = std::env::var("TEST_LAUNCH").unwrap();
                let words = ["forebay", "top", "--nodes=n0", "--launch", &launch];
                std::process::exit(crate::main_with(words.map(Into::into).to_vec()))
            }
            Ok("panic") => Screen::open().unwrap().draw(|_| panic!("on purpose")).unwrap(),
            _ => {}
        }
    }

    struct Session {
        child: Child,
        keyboard: File,
        terminal: File,
        modes: LocalModes,
        seen: Arc<Mutex<Vec<u8>>>,
        stop: Arc<AtomicBool>,
        reader: JoinHandle<()>,
        root: tempfile::TempDir,
    }

    impl Session {
        fn start(what: &str, no_colour: &str) -> Session {
            let master =
                openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
            grantpt(&master).unwrap();
            unlockpt(&master).unwrap();
            let path = ptsname(&master, Vec::new()).unwrap();
            let terminal = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
            tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
            let modes = tcgetattr(&terminal).unwrap().local_modes;
            let root = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("FOREBAY_") {
                    command.env_remove(name);
                }
            }
            let name = "top::tests::on_a_terminal::program";
            command.args(["--exact", name, "--ignored", "--nocapture"]).env("TEST_TOP", what);
            command.env("FOREBAY_DIR", root.path()).env("TERM", "xterm").env("NO_COLOR", no_colour);
            let script = root.path().join("hangs.sh");
            std::fs::write(&script, STUBBORN).unwrap();
            command.env("TEST_LAUNCH", format!("sh {} {{node}}", script.display()));
            let own = || terminal.try_clone().unwrap();
            command.stdin(own()).stdout(own()).stderr(own());
            let child = command.spawn().unwrap();
            let keyboard = File::from(master);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let stop = Arc::new(AtomicBool::new(false));
            let (mut from, into, told) = (keyboard.try_clone().unwrap(), seen.clone(), stop.clone());
            let reader = std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                let slice = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                while !told.load(SeqCst) {
                    match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&slice)) {
                        Ok(0) | Err(_) => continue,
                        Ok(_) => {}
                    }
                    let Ok(n @ 1..) = from.read(&mut bytes) else { return };
                    into.lock().unwrap().extend_from_slice(&bytes[..n]);
                }
            });
            Session { child, keyboard, terminal, modes, seen, stop, reader, root }
        }

        fn text(&self) -> String {
            String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
        }

        fn wait_for(&mut self, text: &str) {
            while !self.text().contains(text) {
                let ended = self.child.try_wait().unwrap();
                assert!(ended.is_none() || self.text().contains(text), "no {text:?} in {:?}", self.text());
                std::thread::sleep(Duration::from_millis(10));
            }
        }

        /// Waits for the end and wants the terminal as it was.
        fn ends(mut self, status: i32) -> String {
            let code = self.child.wait().unwrap().code();
            // The last bytes may still be on their way through the terminal.
            while !self.text().contains(LEAVE) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let text = self.text();
            assert_eq!(code, Some(status), "{text:?}");
            assert_eq!(
                tcgetattr(&self.terminal).unwrap().local_modes,
                self.modes,
                "line editing is not back"
            );
            let (left, shown) = (text.rfind(LEAVE), text.rfind("\x1b[?25h"));
            assert!(left > text.rfind(ENTER) && shown > text.rfind("\x1b[?25l"), "{text:?}");
            text
        }
    }

    #[test]
    fn q_and_control_c_give_the_terminal_back() {
        for key in [&b"q"[..], b"\x03"] {
            let mut session = Session::start("top", "1");
            session.wait_for("forebay init");
            assert_ne!(tcgetattr(&session.terminal).unwrap().local_modes, session.modes);
            session.keyboard.write_all(key).unwrap();
            let text = session.ends(0);
            assert!(!text.contains("\x1b[31") && !text.contains("\x1b[38;"), "coloured: {text:?}");
        }
    }

    /// A view of a node that does not answer, and the processes of its launcher.
    fn unanswered() -> (Session, Vec<String>) {
        let mut session = Session::start("nodes", "1");
        session.wait_for("Waiting for the answers of the nodes.");
        let file = session.root.path().join("hangs.sh.pid");
        loop {
            let pids: Vec<String> = match std::fs::read_to_string(&file) {
                Ok(text) => text.split_whitespace().map(str::to_owned).collect(),
                Err(_) => Vec::new(),
            };
            if pids.len() == 2 {
                return (session, pids);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn have_ended(pids: &[String]) {
        for pid in pids {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            assert!(
                stat.is_empty() || stat.contains(") Z "),
                "what was started for the node goes on: {stat}"
            );
        }
    }

    #[test]
    fn keys_are_heard_while_a_node_does_not_answer_and_its_launcher_is_ended() {
        let (mut session, pids) = unanswered();
        session.keyboard.write_all(b"q").unwrap();
        session.ends(0);
        have_ended(&pids);
    }

    #[test]
    fn a_second_signal_leaves_no_launcher_behind() {
        let (session, pids) = unanswered();
        let pid = Pid::from_child(&session.child);
        kill_process(pid, Signal::TERM).unwrap();
        // While it ends what it has started, for which that has a second.
        std::thread::sleep(Duration::from_millis(400));
        kill_process(pid, Signal::TERM).unwrap();
        session.ends(143);
        have_ended(&pids);
    }

    #[test]
    fn a_signal_gives_the_terminal_back() {
        let mut session = Session::start("top", "");
        session.wait_for("forebay init");
        kill_process(Pid::from_child(&session.child), Signal::TERM).unwrap();
        session.ends(143);
    }

    #[test]
    fn a_terminal_that_is_gone_ends_it() {
        let mut session = Session::start("top", "");
        session.wait_for("forebay init");
        // The other side goes. No process sends SIGHUP: it is not the terminal that controls the process.
        session.stop.store(true, SeqCst);
        session.reader.join().unwrap();
        drop((session.keyboard, session.terminal));
        assert_eq!(session.child.wait().unwrap().code(), Some(129));
    }

    #[test]
    fn a_panic_is_printed_to_the_users_own_screen() {
        // The test harness ends with 101 when a test of it panics.
        let text = Session::start("panic", "").ends(101);
        assert!(text.find("on purpose") > text.find(LEAVE), "{text:?}");
    }
}
