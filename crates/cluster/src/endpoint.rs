//! Where an agent listens: `tls/ADDRESS:PORT`, or `tcp/ADDRESS:PORT` on a fabric that is trusted.
//!
//! Guarantees: plain text is never chosen by itself. A chosen port belongs to the agent from then on. Not here:
//! listening.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::str::FromStr;

use forebay_space::{Error, Kind, Result};
use forebay_tier::process;
use rustix::net::{bind, getsockname, socket_with, sockopt, AddressFamily, SocketFlags, SocketType};

/// An endpoint, as it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    is_plain: bool,
    /// None: the address of this host's name.
    address: Option<IpAddr>,
    /// 0: any.
    port: u16,
}

/// Keeps a port: the kernel gives it to no one who asks for any port, and lets only those have it who ask for this one.
#[derive(Debug)]
pub struct Reserved(#[allow(dead_code, reason = "closed when dropped")] OwnedFd);

impl Reserved {
    /// A port of this address, or any if it is 0, without listening. Others can listen there: the network library does.
    fn port(address: SocketAddr) -> rustix::io::Result<(Reserved, u16)> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        let bound = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((Reserved(socket), bound.port()))
    }
}

impl FromStr for Listen {
    type Err = Error;

    fn from_str(text: &str) -> Result<Listen> {
        let wrong = || {
            Error::new(Kind::Usage, format!("`{text}` is not an endpoint"))
                .hint("use tls/ADDRESS:PORT, for example tls/10.0.0.1:0; port 0 means any free port")
        };
        let (protocol, rest) = text.split_once('/').ok_or_else(wrong)?;
        let is_plain = match protocol {
            "tls" => false,
            "tcp" => true,
            _ => return Err(wrong()),
        };
        if let Ok(socket) = rest.parse::<SocketAddr>() {
            return Ok(Listen { is_plain, address: Some(socket.ip()), port: socket.port() });
        }
        let address = rest.parse::<IpAddr>().map_err(|_| wrong())?;
        Ok(Listen { is_plain, address: Some(address), port: 0 })
    }
}

impl Listen {
    /// Any port, with TLS, at the address of this host's name.
    pub fn anywhere() -> Listen {
        Listen { is_plain: false, address: None, port: 0 }
    }

    /// The same without TLS.
    #[must_use]
    pub fn plain(mut self) -> Listen {
        self.is_plain = true;
        self
    }

    /// Whether only one host can have it.
    pub fn is_of_one_host(&self) -> bool {
        self.address.is_some_and(|address| !address.is_loopback()) || self.port != 0
    }

    /// Whether it is without TLS.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// With an address and a port, which is reserved until the agent listens there.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`]: no address is known, it is not one of this host, or the port is in use.
    pub fn chosen(&self) -> Result<(Listen, Reserved)> {
        let address = match self.address {
            Some(address) => address,
            None => own_address()?,
        };
        if address.is_unspecified() || address.is_multicast() {
            return Err(Error::new(Kind::Usage, format!("an agent cannot listen at {address}"))
                .hint("use an address of this host that the other nodes can reach"));
        }
        let reserved = Reserved::port(SocketAddr::new(address, self.port));
        let (reserved, port) = reserved.map_err(|e| {
            Error::new(Kind::NotPossibleHere, format!("cannot listen at {address} port {}: {e}", self.port))
                .hint("set another address with --listen tls/ADDRESS:PORT")
        })?;
        Ok((Listen { is_plain: self.is_plain, address: Some(address), port }, reserved))
    }

    /// Where versions are sent from: at the same address, at any port, or at the one behind a port that was `given`.
    ///
    /// # Errors
    /// [`Kind::Usage`]: there is no such port.
    pub fn data_address(&self, given: &Listen) -> Result<SocketAddr> {
        let port = if given.port == 0 { Some(0) } else { given.port.checked_add(1) };
        let port = port.ok_or_else(|| {
            Error::new(Kind::Usage, "an agent uses the port after the given one, too")
                .with("port", given.port)
        })?;
        Ok(SocketAddr::new(self.address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)), port))
    }

    /// The address as text.
    pub fn host(&self) -> String {
        self.address.map(|address| address.to_string()).unwrap_or_default()
    }

    /// As other agents connect to it.
    pub fn endpoint(&self) -> String {
        let protocol = if self.is_plain { "tcp" } else { "tls" };
        let address = self.address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        format!("{protocol}/{}", SocketAddr::new(address, self.port))
    }
}

/// The address by which this host is known by its name; else the one from which it reaches others.
fn own_address() -> Result<IpAddr> {
    let name = process::host_name();
    let named = (name, 0u16).to_socket_addrs().into_iter().flatten().map(|socket| socket.ip());
    let routed = || {
        // Nothing is sent: the kernel says which address it would use.
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|local| local.ip()).filter(|ip| !ip.is_unspecified())
    };
    let usable = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
    named.filter(usable).min_by_key(IpAddr::is_ipv6).or_else(routed).ok_or_else(|| {
        Error::new(Kind::NotPossibleHere, format!("cannot find an address of host {name}"))
            .hint("set it with --listen tls/ADDRESS:PORT")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<Listen>();
        assert_eq!(read("tls/127.0.0.1:7000").unwrap().endpoint(), "tls/127.0.0.1:7000");
        assert_eq!(read("tcp/[::1]:7000").unwrap().endpoint(), "tcp/[::1]:7000");
        assert!(read("tcp/10.0.0.1").unwrap().is_plain());
        for wrong in ["", "tls", "tls/", "udp/127.0.0.1:1", "tls/here:1", "tls/127.0.0.1:70000"] {
            assert_eq!(read(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_chosen_port_is_reserved_until_the_agent_listens_there() {
        let any = "tls/127.0.0.1:0".parse::<Listen>().unwrap();
        let (chosen, reserved) = any.chosen().unwrap();
        assert!(chosen.port != 0 && !chosen.is_plain());
        let at = SocketAddr::new(chosen.address.unwrap(), chosen.port);
        let takes = || {
            let socket =
                socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            bind(&socket, &at).is_ok()
        };
        assert!(!takes(), "another program has it");
        // As the network library does.
        let listener = std::net::TcpListener::bind(at).unwrap();
        drop(reserved);
        let wanted = Listen { port: at.port(), ..any };
        assert_eq!(wanted.chosen().unwrap_err().kind(), Kind::NotPossibleHere, "an agent listens there");
        drop(listener);
        assert!(takes());
    }

    #[test]
    fn a_wildcard_is_refused() {
        assert_eq!("tls/0.0.0.0:0".parse::<Listen>().unwrap().chosen().unwrap_err().kind(), Kind::Usage);
    }
}
