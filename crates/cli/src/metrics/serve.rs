//! A very small HTTP server: GET and HEAD of `/metrics` on a loopback address.
//!
//! Guarantees: listens on loopback only; one request a connection, at most [`REQUEST_BYTES_MAX`] of it, and
//! no client holds a connection longer than [`TIME_MAX`]; at most [`CLIENTS_MAX`] at once, the others are told to
//! come again. Whatever a client sends, it gets an answer or a closed connection, and the others are served.
//! Not here: encryption and passwords. Every user of this machine can read what is served.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_tier::{clock, Error, Kind, Result};

use super::text::Form;

/// A scraper's request has a few hundred bytes; browsers send up to a few thousand.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// From the first byte to the last; scrapers give up after 10 s.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Two scrapers, a person or two, and some that hang.
const CLIENTS_MAX: usize = 16;
/// What is still read of a client that goes on sending after it was answered.
const LINGER_BYTES_MAX: usize = 64 << 10;
const LINGER_TIME_MAX: Duration = Duration::from_millis(500);

/// What is served: the text in the form asked for, or why there is none.
pub type Source = dyn Fn(Form) -> Result<String> + Send + Sync;

/// An address of this machine that only this machine can reach.
///
/// # Errors
/// `Usage` when the text is no address, or one that others could reach.
pub fn loopback(text: &str) -> Result<SocketAddr> {
    let hint = "for example --listen 127.0.0.1:9464; port 0 takes any that is free";
    let found = text
        .to_socket_addrs()
        .map_err(|e| Error::new(Kind::Usage, format!("`{text}` is not ADDRESS:PORT: {e}")).hint(hint))?;
    let all: Vec<SocketAddr> = found.collect();
    if let Some(open) = all.iter().find(|a| !a.ip().is_loopback()) {
        let message = format!("{text} is not served: others than this machine could reach {}", open.ip());
        return Err(Error::new(Kind::Usage, message).hint(
            "the port has no authentication, and names of spaces and programs are private: listen on 127.0.0.1 or \
             [::1] and use an authenticating proxy, or use --textfile",
        ));
    }
    // IPv4 first: what scrapers are usually told.
    all.iter().find(|a| a.is_ipv4()).or(all.first()).copied().ok_or_else(|| {
        Error::new(Kind::Usage, format!("`{text}` is not an address of this machine")).hint(hint)
    })
}

/// Listens there and answers in threads of its own until the process ends. Returns the address taken.
///
/// # Errors
/// `Io` or `PermissionDenied` when the port cannot be had.
pub fn serve(address: SocketAddr, source: Arc<Source>) -> Result<SocketAddr> {
    let failed =
        |e| Error::io(format!("listening on {address}"), e).hint("use another port, or 0 for a free one");
    let listener = TcpListener::bind(address).map_err(failed)?;
    let taken = listener.local_addr().map_err(failed)?;
    let name = "metrics".to_string();
    let accepting = std::thread::Builder::new().name(name).spawn(move || accept(&listener, &source));
    accepting.map_err(|e| Error::io("starting a thread", e))?;
    Ok(taken)
}

fn accept(listener: &TcpListener, source: &Arc<Source>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((mut stream, _)) = listener.accept() else {
            // Out of file descriptors, most likely: without a pause this would be a busy loop.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.fetch_add(1, SeqCst) >= CLIENTS_MAX {
            turn_away(&mut stream);
            clients.fetch_sub(1, SeqCst);
            continue;
        }
        let (source, leaving) = (source.clone(), Leaving(clients.clone()));
        // A thread that cannot be started drops the connection and releases its place.
        let _ = std::thread::Builder::new().spawn(move || {
            let _leaving = leaving;
            answer(stream, &*source);
        });
    }
}

/// Says that all places are taken, without waiting for what the client wants to say: others wait to be accepted.
fn turn_away(stream: &mut TcpStream) {
    const SHORT: Option<Duration> = Some(Duration::from_millis(20));
    let answer = Answer::failed(503, "too many at once; come again").bytes(false);
    if stream.set_write_timeout(SHORT).and_then(|()| stream.write_all(&answer)).is_ok() {
        // What has come by now is taken, so that closing does not reset the connection under the answer.
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.set_read_timeout(SHORT).and_then(|()| stream.read(&mut [0; 1024]));
    }
}

/// Releases a client's place, also when its thread panics.
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn answer(mut stream: TcpStream, source: &Source) {
    let deadline = Instant::now() + TIME_MAX;
    let _ = stream.set_nodelay(true);
    let (answer, without_body) = match request(&mut stream, deadline) {
        Ok(Some(head)) => respond(&head, source),
        Ok(None) => return,
        Err(answer) => (answer, false),
    };
    // Looking may have taken its time, which is not the client's.
    let deadline = Instant::now() + TIME_MAX;
    if send(&mut stream, &answer.bytes(without_body), deadline).is_ok() {
        linger(&mut stream);
    }
}

/// A connection closed on unread bytes is reset, which can take the answer away from the client.
fn linger(stream: &mut TcpStream) {
    let deadline = Instant::now() + LINGER_TIME_MAX;
    let mut left = LINGER_BYTES_MAX;
    let mut bytes = [0; 4096];
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    while left > 0 && left_until(deadline).is_some_and(|t| stream.set_read_timeout(Some(t)).is_ok()) {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(n) => left = left.saturating_sub(n),
        }
    }
}

fn left_until(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let left = left_until(deadline).ok_or(ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Request line and header fields; None when the client left before it said anything whole.
fn request(stream: &mut TcpStream, deadline: Instant) -> std::result::Result<Option<Vec<u8>>, Answer> {
    let (mut head, mut bytes) = (Vec::new(), [0; 1024]);
    loop {
        if let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") {
            head.truncate(end);
            return Ok(Some(head));
        }
        if head.len() > REQUEST_BYTES_MAX {
            return Err(Answer::failed(431, "the request is too long"));
        }
        let Some(left) = left_until(deadline) else {
            return Err(Answer::failed(408, "the request took too long"));
        };
        if stream.set_read_timeout(Some(left)).is_err() {
            return Ok(None);
        }
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(None),
            Ok(n) => head.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Answer::failed(408, "the request took too long"));
            }
            Err(_) => return Ok(None),
        }
    }
}

/// The answer to a request, and whether it goes without its body.
fn respond(head: &[u8], source: &Source) -> (Answer, bool) {
    let Ok(head) = std::str::from_utf8(head) else {
        return (Answer::failed(400, "the request is no text"), false);
    };
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or("").split(' ').collect();
    let [method, target, version] = words[..] else {
        return (Answer::failed(400, "the request line is not `METHOD PATH HTTP/1.1`"), false);
    };
    let fields: Option<Vec<(&str, &str)>> = lines.map(field).collect();
    let Some(fields) = fields else { return (Answer::failed(400, "a header field lacks its colon"), false) };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return (Answer::failed(505, "only HTTP/1.1 and HTTP/1.0 are spoken here"), false);
    }
    let without_body = method == "HEAD";
    if version == "HTTP/1.1" && !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        return (Answer::failed(400, "a request of HTTP/1.1 names its host"), without_body);
    }
    let path = path_of(target);
    let answer = match (method, path) {
        ("GET" | "HEAD", "/metrics") => metrics(&fields, source),
        ("GET" | "HEAD", "/") => Answer::text(200, "text/plain; charset=utf-8", "see /metrics\n".into()),
        ("GET" | "HEAD", _) => Answer::failed(404, "only /metrics is here"),
        _ => Answer { allow: true, ..Answer::failed(405, "only GET and HEAD are answered here") },
    };
    (answer, without_body)
}

/// Name and value of a header field; None where there is no colon or no name.
fn field(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    is_name.then(|| (name, value.trim()))
}

/// The path of a target, which may be a whole address (as proxies send it) and may carry a query.
fn path_of(target: &str) -> &str {
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    path.split(['?', '#']).next().unwrap_or(path)
}

fn metrics(fields: &[(&str, &str)], source: &Source) -> Answer {
    let accepts = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let open = accepts.flat_map(|(_, value)| value.split(',')).any(wants_open_metrics);
    let form = if open { Form::OpenMetrics } else { Form::Prometheus };
    match source(form) {
        Ok(text) => Answer::text(200, form.content_type(), text),
        Err(e) => Answer::failed(500, &e.to_string()),
    }
}

fn wants_open_metrics(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let named = parts.next().is_some_and(|t| t.eq_ignore_ascii_case("application/openmetrics-text"));
    let refused = |p: &str| p.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
    named && !parts.any(refused)
}

/// `Sat, 21 Nov 2026 11:30:00 GMT`, as HTTP writes dates.
fn date(unix_s: u64) -> String {
    forebay_profile::date::formatted(unix_s, "%a, %d %b %Y %H:%M:%S GMT")
}

/// An answer before it is written.
struct Answer {
    status: u16,
    content_type: &'static str,
    allow: bool,
    body: String,
}

impl Answer {
    fn text(status: u16, content_type: &'static str, body: String) -> Answer {
        Answer { status, content_type, allow: false, body }
    }

    fn failed(status: u16, why: &str) -> Answer {
        Answer::text(status, "text/plain; charset=utf-8", format!("{why}\n"))
    }

    fn reason(&self) -> &'static str {
        match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "Internal Server Error",
        }
    }

    fn bytes(&self, without_body: bool) -> Vec<u8> {
        let Answer { status, content_type, body, .. } = self;
        let allow = if self.allow { "Allow: GET, HEAD\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {status} {}\r\nDate: {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             {allow}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.reason(),
            date(clock::realtime_ns() / 1_000_000_000),
            body.len()
        )
        .into_bytes();
        if !without_body {
            bytes.extend_from_slice(body.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_http() {
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(1_709_164_800), "Thu, 29 Feb 2024 00:00:00 GMT");
    }

    #[test]
    fn only_loopback_is_listened_on() {
        for open in ["0.0.0.0:9464", "[::]:9464", "192.0.2.7:9464"] {
            let error = loopback(open).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains("others than this machine"), "{error}");
        }
        for closed in ["127.0.0.1:9464", "127.9.9.9:1", "[::1]:9464"] {
            assert!(loopback(closed).unwrap().ip().is_loopback());
        }
        assert!(loopback("9464").is_err() && loopback("127.0.0.1").is_err());
    }

    #[test]
    fn the_form_is_what_the_client_asks_for() {
        for (accept, open) in [
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
                true,
            ),
            ("text/plain", false),
            ("*/*", false),
            ("application/openmetrics-text;q=0, text/plain", false),
        ] {
            assert_eq!(accept.split(',').any(wants_open_metrics), open, "{accept}");
        }
    }

    #[test]
    fn requests_are_answered_by_the_book() {
        let source = |form: Form| Ok(format!("{form:?}\n"));
        let status = |head: &str| respond(head.as_bytes(), &source).0.status;
        for (head, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: localhost", 200),
            ("GET /metrics?name=x HTTP/1.0", 200),
            ("GET http://localhost:9464/metrics HTTP/1.1\r\nhost: localhost", 200),
            ("HEAD / HTTP/1.1\r\nHost: localhost", 200),
            ("GET /metrics HTTP/1.1", 400),
            ("GET /metrics", 400),
            ("GET  /metrics HTTP/1.1\r\nHost: localhost", 400),
            ("GET /metrics HTTP/1.1\r\nHost localhost", 400),
            ("GET /metrics HTTP/1.1\r\nHost : localhost", 400),
            ("", 400),
            ("GET /metric HTTP/1.1\r\nHost: localhost", 404),
            ("POST /metrics HTTP/1.1\r\nHost: localhost", 405),
            ("GET /metrics HTTP/2.0\r\nHost: localhost", 505),
        ] {
            assert_eq!(status(head), wanted, "{head:?}");
        }
        assert_eq!(respond(b"GET /\xff HTTP/1.0", &source).0.status, 400);
        let (answer, without_body) = respond(b"HEAD /metrics HTTP/1.0", &source);
        let head = String::from_utf8(answer.bytes(without_body)).unwrap();
        assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 11\r\n"), "{head}");
        let refused = respond(b"PUT / HTTP/1.0", &source).0.bytes(false);
        assert!(String::from_utf8(refused).unwrap().contains("\r\nAllow: GET, HEAD\r\n"));
    }
}
