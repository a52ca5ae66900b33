//! Where an agent listens: `tls/ADDRESS:PORT`, or `tcp/ADDRESS:PORT` on a fabric that is trusted.
//!
//! Guarantees: plain text is never chosen by itself. A port that is not given is one that was free just now. Not here:
//! listening.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

use forebay_space::{Error, Kind, Result};
use forebay_tier::process;

/// An endpoint, as it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    is_plain: bool,
    /// None: the address of this host's name.
    address: Option<IpAddr>,
    /// 0: any.
    port: u16,
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

    /// With an address and a port.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`]: no address is known, or it is not one of this host.
    pub fn chosen(&self) -> Result<Listen> {
        let address = match self.address {
            Some(address) => address,
            None => own_address()?,
        };
        if address.is_unspecified() || address.is_multicast() {
            return Err(Error::new(Kind::Usage, format!("an agent cannot listen at {address}"))
                .hint("use an address of this host that the other nodes can reach"));
        }
        let probed =
            TcpListener::bind(SocketAddr::new(address, self.port)).and_then(|probe| probe.local_addr());
        let port = probed.map_err(|e| {
            Error::new(Kind::NotPossibleHere, format!("cannot listen at {address} port {}: {e}", self.port))
                .hint("set another address with --listen tls/ADDRESS:PORT")
        })?;
        Ok(Listen { is_plain: self.is_plain, address: Some(address), port: port.port() })
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
    fn a_port_is_chosen_and_a_wildcard_refused() {
        let chosen = "tls/127.0.0.1:0".parse::<Listen>().unwrap().chosen().unwrap();
        assert!(chosen.port != 0 && !chosen.is_plain());
        assert_eq!("tls/0.0.0.0:0".parse::<Listen>().unwrap().chosen().unwrap_err().kind(), Kind::Usage);
    }
}
