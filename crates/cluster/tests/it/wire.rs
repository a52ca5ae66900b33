//! The connections by which versions travel: ones that break or damage what they carry, and who else connects.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::Signal;
use serde_json::{json, Value};

use crate::bed::{until, Bed};

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Ends,
    /// One bit is another one.
    Damages,
}

/// Bytes of a version.
const LARGE: usize = (9 << 20) + 5;

fn card(bed: &Bed, node: &str) -> Value {
    serde_json::from_slice(&std::fs::read(bed.rendezvous().join(format!("{node}.json"))).unwrap()).unwrap()
}

fn data_address(bed: &Bed, node: &str) -> SocketAddr {
    card(bed, node)["data"].as_str().unwrap().parse().unwrap()
}

/// Stands between the agent of a node and those that connect to it for versions; how many connections there were. The
/// first `faulty` of them have a fault after so many bytes.
fn stand_between(bed: &Bed, node: &str, fault: Fault, after: usize, faulty: usize) -> Arc<AtomicUsize> {
    let mut card = card(bed, node);
    let target = data_address(bed, node);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    card["data"] = json!(listener.local_addr().unwrap());
    let new = bed.rendezvous().join("new");
    std::fs::write(&new, card.to_string()).unwrap();
    std::fs::rename(&new, bed.rendezvous().join(format!("{node}.json"))).unwrap();
    let count = Arc::<AtomicUsize>::default();
    let seen = count.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let is_faulty = seen.fetch_add(1, SeqCst) < faulty;
            let Ok(server) = TcpStream::connect(target) else { return };
            // What is on its way is little.
            for socket in [&client, &server] {
                sockopt::set_socket_recv_buffer_size(socket, 64 << 10).unwrap();
                sockopt::set_socket_send_buffer_size(socket, 64 << 10).unwrap();
            }
            let requests = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || forward(requests.0, requests.1, None));
            std::thread::spawn(move || forward(server, client, is_faulty.then_some((fault, after))));
        }
    });
    count
}

fn forward(mut from: TcpStream, mut to: TcpStream, fault: Option<(Fault, usize)>) {
    let (mut buffer, mut passed) = (vec![0; 64 << 10], 0);
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        if let Some((fault, after)) = fault.filter(|(_, after)| (passed..passed + bytes).contains(after)) {
            if fault == Fault::Ends {
                break;
            }
            buffer[after - passed] ^= 4;
        }
        passed += bytes;
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn what_a_connection_lost_or_damaged_is_asked_for_again() {
    let secure: (&[&str], &str) = (&[], "TLS");
    let plain: (&[&str], &str) = (&["--trusted-fabric", "--listen", "tcp/127.0.0.1:0"], "TCP");
    for ((options, protocol), fault) in
        [(secure, Fault::Ends), (secure, Fault::Damages), (plain, Fault::Ends), (plain, Fault::Damages)]
    {
        let bed = Bed::with(2, options);
        let connections = stand_between(&bed, "n0", fault, 3 << 20, 2);
        let readers = json!([["here", 1], ["there", 1]]);
        let writer = bed.nodes[0].run(
            "write",
            json!({
                "ranks": 2, "steps": 3, "large": LARGE, "quota": 256 << 20, "readers": readers, "pause_ms": 400
            }),
        );
        let here = bed.nodes[0].run("read", json!({ "component": "here" }));
        let there = bed.nodes[1].run("read", json!({ "component": "there" }));
        let (here, there) = (here.lines("version"), there.lines("version"));
        assert_eq!((here.len(), &here), (3, &there), "{protocol} {fault:?}");
        writer.lines("put");
        assert_eq!(connections.load(SeqCst), 3, "{protocol} {fault:?}");
        bed.stop();
    }
}

#[test]
fn what_is_damaged_again_and_again_is_an_error_and_no_version() {
    let bed = Bed::with(2, &["--trusted-fabric", "--listen", "tcp/127.0.0.1:0"]);
    stand_between(&bed, "n0", Fault::Damages, 100 << 10, usize::MAX);
    let mut reader = bed.nodes[1].run("read", json!({}));
    let mut writer =
        bed.nodes[0].run("write", json!({ "steps": 1, "large": LARGE, "quota": 128 << 20, "end": "wait" }));
    let error = reader.line("error");
    assert!(error.contains("ProducerDied") && error.contains("checksum"), "{error}");
    assert_eq!(reader.so_far("version"), 0);
    writer.kill();
}

#[test]
fn who_is_not_of_the_job_gets_nothing_and_the_agent_goes_on() {
    for options in [&[][..], &["--trusted-fabric", "--listen", "tcp/127.0.0.1:0"]] {
        let bed = Bed::with(2, options);
        let at = data_address(&bed, "n0");
        let connect = || {
            let stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
            stream
        };
        let request = br#"{"protocol":2,"node":"n1","incarnation":1,"ask":{"probe":{"bytes":8}}}"#;
        let framed =
            |request: &[u8]| [&[1, 0, 0, 0, 0], &(request.len() as u32).to_le_bytes()[..], request].concat();
        // More than the agent keeps.
        let silent: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
        for sent in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            vec![0; 9],
            [&[1, 0, 0, 0, 0], &u32::MAX.to_le_bytes()[..]].concat(),
            framed(b"{"),
            framed(&request[..request.len() - 1]),
            framed(&String::from_utf8_lossy(request).replace('2', "1").into_bytes()),
        ] {
            let mut stream = connect();
            stream.write_all(&sent).unwrap();
            let mut answer = Vec::new();
            // Closed, or reset with what it has not read.
            let _ = stream.read_to_end(&mut answer);
            let is_refusal = answer.is_empty() || answer[0] != 2;
            assert!(is_refusal, "{sent:?}: {answer:?}");
        }
        let mut stream = connect();
        stream.write_all(&framed(request)).unwrap();
        let mut head = [0; 1];
        let is_answered = stream.read(&mut head).is_ok_and(|bytes| bytes == 1 && head[0] == 2);
        // On a trusted fabric a process that connects is of the job.
        assert_eq!(is_answered, !options.is_empty());
        let reader = bed.nodes[1].run("read", json!({}));
        let writer = bed.nodes[0].run("write", json!({ "pause_ms": 300 }));
        assert_eq!(reader.lines("version").len(), 3);
        writer.lines("put");
        if options.is_empty() {
            // Those that say nothing are closed.
            until("they are closed", || {
                silent.iter().all(|mut stream| stream.read(&mut [0]).is_ok_and(|bytes| bytes == 0))
            });
        }
        bed.stop();
    }
}

#[test]
fn an_agent_that_is_stopped_and_goes_on_while_it_sends_sends_nothing_twice() {
    let mut bed = Bed::new(2);
    let connections = stand_between(&bed, "n0", Fault::Ends, 0, 0);
    let readers = json!([["here", 1], ["there", 1]]);
    // Each array is a part of its own, and all are more than the buffers of a connection hold.
    let with = json!({ "ranks": 100, "steps": 20, "large": 120_000, "quota": 80 << 20, "readers": readers });
    let writer = bed.nodes[0].run("write", with);
    let here = bed.nodes[0].run("read", json!({ "component": "here" }));
    let mut there = bed.nodes[1].run("read", json!({ "component": "there", "pause_ms": 100 }));
    let first = there.line("version");
    for _ in 0..10 {
        // The mirror's agent takes nothing, so that the owner's waits in the middle of what it sends.
        bed.nodes[1].agent().signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(150));
        for _ in 0..5 {
            bed.nodes[0].agent().signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(10));
            bed.nodes[0].agent().signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(10));
        }
        bed.nodes[1].agent().signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(50));
    }
    let there = [vec![first], there.lines("version")].concat();
    assert_eq!((there.len(), here.lines("version")), (20, there));
    // Nor is anything asked for again.
    assert_eq!(connections.load(SeqCst), 1);
    writer.lines("put");
    bed.stop();
}
