//! The certificates of a job: an authority that its first agent makes, and a certificate for each agent.
//!
//! Guarantees: keys are in files of mode 0600 in the job's folder, which is one user's alone: a process that can read
//! that folder is of the job, and no other one is. A certificate of another job, or none, is refused by both sides of
//! a connection ([`crate::link`]). Not here: where the folder lies ([`crate::rendezvous`]).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use crate::rendezvous::Rendezvous;

/// The authority's certificate, which all agents read.
pub const AUTHORITY_FILE: &str = ".authority.pem";
const AUTHORITY_KEY_FILE: &str = ".authority.key";
/// Made by the agent that makes the authority.
const LOCK_FILE: &str = ".authority.lock";
/// Making it takes milliseconds, but on a file system of the network others see it later.
const AUTHORITY_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// Files that prove that an agent is of the job.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The agent's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A certificate for the agent of `node`, which listens at `address`; makes the authority where it is the first.
///
/// # Errors
/// [`Kind::TimedOut`]: another agent makes the authority and does not come to an end; those of the files.
pub fn identity(at: &Rendezvous, node: &str, address: &str) -> Result<Identity> {
    if at.make_file(LOCK_FILE, b"")? {
        let (certificate, key) = new_authority(at.job())?;
        at.write(AUTHORITY_KEY_FILE, key.as_bytes())?;
        // Last: others wait for it.
        at.write(AUTHORITY_FILE, certificate.as_bytes())?;
    }
    let deadline = Instant::now() + AUTHORITY_TIMEOUT;
    while !at.has(AUTHORITY_FILE) {
        if Instant::now() >= deadline {
            return Err(Error::new(Kind::TimedOut, "the certificates of the job were not created in time")
                .with("folder", at.path().display())
                .hint("an agent may have been killed while it created them: remove the folder, and start all agents"));
        }
        std::thread::sleep(POLL);
    }
    let key = at.read(AUTHORITY_KEY_FILE)?;
    let (certificate, own_key) = new_certificate(at.job(), &key, node, address)?;
    let (certificate_file, key_file) = (format!("{node}.pem"), format!("{node}.key"));
    at.write(&key_file, own_key.as_bytes())?;
    at.write(&certificate_file, certificate.as_bytes())?;
    Ok(Identity {
        authority: at.path().join(AUTHORITY_FILE),
        certificate: at.path().join(certificate_file),
        key: at.path().join(key_file),
    })
}

/// Names of the files of this module that are the job's.
pub const FILES_OF_JOB: [&str; 3] = [AUTHORITY_FILE, AUTHORITY_KEY_FILE, LOCK_FILE];

/// Names of the files of this module that are a node's.
pub fn files_of_node(node: &str) -> [String; 2] {
    [format!("{node}.pem"), format!("{node}.key")]
}

fn failed(e: rcgen::Error) -> Error {
    Error::new(Kind::Internal, format!("cannot create a certificate: {e}"))
}

/// What the authority of a job is called in certificates.
fn authority_params(job: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("forebay job {job}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A new authority: certificate and key as PEM.
fn new_authority(job: &str) -> Result<(String, String)> {
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = authority_params(job)?.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// A certificate of the authority with this key: certificate and key as PEM.
fn new_certificate(job: &str, authority_key: &str, node: &str, address: &str) -> Result<(String, String)> {
    let authority_key = KeyPair::from_pem(authority_key).map_err(failed)?;
    let issuer = Issuer::new(authority_params(job)?, authority_key);
    let key = KeyPair::generate().map_err(failed)?;
    // By the address it is connected to; by its name where one connects by that.
    let mut names = vec![address.to_string()];
    names.extend((node != address).then(|| node.to_string()));
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, node);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}
