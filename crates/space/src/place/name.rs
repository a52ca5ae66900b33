//! From the name of a space to its directory, and the root of short names.
//!
//! Guarantees: a short name (`[A-Za-z0-9._-]`, no leading dot, at most 200 bytes) names a directory directly
//! below the root and nothing else: a symbolic link in its place that leads out of the root is refused. A
//! name with a `/` is a path and is taken as it stands. The root is this user's own: a directory, no symbolic
//! link, owned by this uid, not writable by other users, so that none of them can plant a space in it. Not here:
//! making or opening the space.

use forebay_config::environment::{self, Lookup};
use forebay_tier::host::fs;
pub use forebay_tier::own_directory::effective_uid;
use forebay_tier::own_directory::{self, fault_of, refused};
use forebay_tier::{Error, Kind, Result};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Longest short name: a file name may have 255 bytes, and temporary names beside it need some.
pub const NAME_BYTES_MAX: usize = 200;

/// Where the default root lies: memory, and there on every Linux.
const SHARED_MEMORY: &str = "/dev/shm";

/// The root of short names, `FOREBAY_DIR` or `/dev/shm/forebay-UID`; checked where it is there, and not made.
///
/// # Errors
/// [`Kind::PermissionDenied`] when it is not this user's alone; [`Kind::Io`].
pub fn root() -> Result<PathBuf> {
    let path = root_path(&environment::process)?;
    check_private(&path)?;
    Ok(path)
}

/// As [`root`], made (0700) where it is missing.
///
/// # Errors
/// Those of [`root`]; [`Kind::PermissionDenied`] also when it cannot be made.
pub fn make_root() -> Result<PathBuf> {
    let path = root_path(&environment::process)?;
    make_private(&path)?;
    Ok(path)
}

/// Makes the root of short names, if the space `name` is to lie there.
///
/// # Errors
/// Those of [`make_root`].
pub(crate) fn make_root_for(name: &str) -> Result<()> {
    if is_path(name) {
        return Ok(());
    }
    make_root().map(drop)
}

/// The path of the root, neither made nor checked.
///
/// # Errors
/// [`Kind::Io`] when the working directory or the uid cannot be found out.
pub fn root_path(lookup: Lookup<'_>) -> Result<PathBuf> {
    match given_root(lookup) {
        Some(text) => absolute(Path::new(&text)),
        None => Ok(Path::new(SHARED_MEMORY).join(format!("forebay-{}", effective_uid()?))),
    }
}

/// What FOREBAY_DIR says, unless it names an installation, as module systems set it: that is said once on standard
/// error.
fn given_root(lookup: Lookup<'_>) -> Option<String> {
    static SAID: std::sync::Once = std::sync::Once::new();
    let text = environment::value("FOREBAY_DIR", lookup)?;
    if !is_installation(Path::new(&text)) {
        return Some(text);
    }
    SAID.call_once(|| {
        eprintln!(
            "forebay: warning: FOREBAY_DIR={text} is ignored: it is an installation directory, not a directory of \
             spaces"
        );
    });
    None
}

/// Whether a directory holds the command or a library of Forebay.
fn is_installation(dir: &Path) -> bool {
    let has_library = |folder: &str| {
        let entries = fs::read_dir(dir.join(folder)).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"libforebay"))
    };
    fs::metadata(dir.join("bin/forebay")).is_ok_and(|found| found.is_file())
        || has_library("lib")
        || has_library("lib64")
}

/// The directory of the space `name`: below the (checked) root for a short name, else the path
/// itself. Whether it exists does not matter.
///
/// # Errors
/// [`Kind::BadName`]; for short names also those of [`root`].
pub fn directory(name: &str) -> Result<PathBuf> {
    if is_path(name) {
        return path_directory(name);
    }
    check_short(name)?;
    directory_below(&root()?, name)
}

/// True when `name` is taken as a path rather than as a short name.
pub fn is_path(name: &str) -> bool {
    name.contains('/')
}

/// The short form of a name for messages and file names: of a path the last part.
pub fn display_name(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or(name)
}

/// Checks a short name.
///
/// # Errors
/// [`Kind::BadName`].
pub fn check_short(name: &str) -> Result<()> {
    let fault = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "it is longer than 200 bytes"
    } else if name.starts_with('.') {
        "it begins with a dot"
    } else if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        "it holds other characters than letters, digits, `.`, `_` and `-`"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(60).collect();
    Err(Error::new(Kind::BadName, format!("`{}` cannot name a space: {fault}", shown.escape_debug()))
        .hint("use a short name such as heat-2d, or a path that contains a `/`"))
}

/// The directory of a short name below `root`.
///
/// # Errors
/// [`Kind::BadName`] also when a symbolic link of that name leads out of `root`.
pub fn directory_below(root: &Path, name: &str) -> Result<PathBuf> {
    check_short(name)?;
    let path = root.join(name);
    let is_link = fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_symlink());
    if is_link {
        let inside = fs::canonicalize(root)
            .and_then(|root| fs::canonicalize(&path).map(|target| target.parent() == Some(root.as_path())));
        if !inside.unwrap_or(false) {
            return Err(Error::new(
                Kind::BadName,
                format!("`{name}` is a symbolic link to a path outside the root directory of spaces"),
            )
            .with("root", root.display())
            .hint("give the path itself, with a `/` in it, to open a space elsewhere"));
        }
    }
    Ok(path)
}

fn path_directory(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    let wrong = |fault: &str| {
        Error::new(Kind::BadName, format!("`{}` cannot name a space: {fault}", name.escape_debug()))
    };
    if name.contains('\0') {
        return Err(wrong("it holds a zero byte"));
    }
    match path.components().next_back() {
        Some(Component::Normal(last)) if last.to_str().and_then(hidden).is_some() => {
            Err(wrong("names of this form are those of spaces that are made or removed"))
        }
        Some(Component::Normal(last)) if last.len() <= NAME_BYTES_MAX => absolute(path),
        Some(Component::Normal(_)) => Err(wrong("its last part is longer than 200 bytes")),
        _ => Err(wrong("its last part is not a name")),
    }
}

/// The path from the file system's root on, with links and `..` left as they are.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(format!("cannot resolve the path {}", path.display()), e))
}

/// Makes a directory that is this user's alone, or checks that it is.
///
/// # Errors
/// [`Kind::PermissionDenied`]: it is a symbolic link, no directory, another user's, or writable by others.
pub fn make_private(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(|e| cannot_make(parent, e))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(cannot_make(path, e)),
    }
    check_private(path)
}

/// Checks that a directory is this user's alone, if it is there.
fn check_private(path: &Path) -> Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?,
    };
    let fault = match () {
        () if meta.file_type().is_symlink() => "it is a symbolic link",
        () if !meta.is_dir() => "it is not a directory",
        () => match fault_of(&meta)? {
            Some(fault) => fault,
            None => return Ok(()),
        },
    };
    Err(refused(path, "cannot hold spaces", fault, &meta)
        .hint("set FOREBAY_DIR to a directory of your own with mode 0700"))
}

/// Checks that the directory of a space is this user's alone, if it is there: in a shared directory another user can
/// be the first to make one of this name, or a symbolic link.
///
/// # Errors
/// [`Kind::PermissionDenied`]: it is another user's, or writable by others, or a symbolic link that another user made
/// where others may write.
pub(crate) fn check_own(dir: &Path) -> Result<()> {
    let hint =
        "a space belongs to one user, in a directory with mode 0700: use another name, or chmod go-w it";
    own_directory::check_own(dir, "is not opened as a space", hint)
}

fn cannot_make(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("cannot create the directory {}", path.display()), error)
        .hint("set FOREBAY_DIR to a directory where you may write")
}

/// Directory above a space, and the name of its own one.
pub(crate) fn place_of(name: &str, dir: &Path) -> Result<(PathBuf, String)> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = dir
        .file_name()
        .ok_or_else(|| Error::new(Kind::BadName, format!("`{name}` cannot be the directory of a space")))?;
    Ok((parent.to_path_buf(), file.to_string_lossy().into_owned()))
}

/// The directory that a path names, behind symbolic links, also where it is not there yet: a link is neither renamed
/// nor replaced.
pub(crate) fn behind_links(dir: &Path) -> PathBuf {
    match fs::symlink_metadata(dir) {
        Ok(meta) if meta.file_type().is_symlink() => {}
        _ => return dir.to_path_buf(),
    }
    let parent = dir.parent().unwrap_or(Path::new("."));
    let target = || std::fs::read_link(dir).map_or(dir.to_path_buf(), |target| parent.join(target));
    fs::canonicalize(dir).unwrap_or_else(|_| target())
}

/// A text as part of a file name: what is not a letter, digit, `.`, `_` or `-` becomes `_`, and it gets
/// short.
pub fn sanitised(text: &str, bytes_max: usize) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let mut safe: String = text.chars().map(|c| if plain(c) { c } else { '_' }).take(bytes_max).collect();
    if safe.is_empty() || safe.starts_with('.') {
        safe.insert(0, '_');
    }
    safe
}

/// What a hidden directory is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// On its way in.
    New,
    /// On its way out.
    Gone,
}

/// Whether a file name is that of a directory on its way in or out, and the name that it is to have or had.
pub(crate) fn hidden(file: &str) -> Option<(Hidden, &str)> {
    [(".new-", Hidden::New), (".gone-", Hidden::Gone)].into_iter().find_map(|(mark, hidden)| {
        let (front, numbers) = file.rsplit_once(mark)?;
        let (pid, time) = numbers.split_once('-')?;
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let name = front.strip_prefix('.')?;
        (is_number(pid) && is_number(time)).then_some((hidden, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};

    #[test]
    fn short_names() {
        for name in ["a", "heat-2d", "A.b_c", "0", &"x".repeat(200)] {
            check_short(name).unwrap();
        }
        for name in ["", ".", "..", ".hidden", "a b", "a\0b", "hé", "a\n", "~", &"x".repeat(201)] {
            assert_eq!(check_short(name).unwrap_err().kind(), Kind::BadName, "{name:?}");
        }
    }

    #[test]
    fn a_short_name_stays_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        make_private(&root).unwrap();
        assert_eq!(directory_below(&root, "heat").unwrap(), root.join("heat"));
        for name in ["..", "../x", "/etc", "a/../../b"] {
            assert_eq!(directory_below(&root, name).unwrap_err().kind(), Kind::BadName, "{name}");
        }
        symlink(dir.path(), root.join("out")).unwrap();
        symlink(root.join("nowhere"), root.join("broken")).unwrap();
        symlink("../..", root.join("up")).unwrap();
        for name in ["out", "broken", "up"] {
            assert_eq!(directory_below(&root, name).unwrap_err().kind(), Kind::BadName, "{name}");
        }
        fs::create_dir(root.join("real")).unwrap();
        symlink("real", root.join("alias")).unwrap();
        directory_below(&root, "alias").unwrap();
    }

    #[test]
    fn paths_are_taken_as_they_stand() {
        assert_eq!(directory("/scratch/run/heat").unwrap(), Path::new("/scratch/run/heat"));
        assert_eq!(directory("./heat").unwrap(), std::env::current_dir().unwrap().join("heat"));
        for name in ["/", "../..", "x/..", "/a\0b", &format!("/{}", "x".repeat(201))] {
            assert_eq!(directory(name).unwrap_err().kind(), Kind::BadName, "{name:?}");
        }
        assert_eq!(display_name("/scratch/heat/"), "heat");
        assert_eq!(display_name("heat"), "heat");
    }

    #[test]
    fn the_root_is_made_private() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/root");
        make_private(&root).unwrap();
        make_private(&root).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_root_that_others_could_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        make_private(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        let error = make_private(&root).unwrap_err();
        assert_eq!(error.kind(), Kind::PermissionDenied);
        assert!(error.hint_text().unwrap().contains("FOREBAY_DIR"), "{error}");
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert_eq!(make_private(&link).unwrap_err().kind(), Kind::PermissionDenied);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(make_private(&file).unwrap_err().kind(), Kind::PermissionDenied);
        if effective_uid().unwrap() != 0 {
            assert_eq!(make_private(Path::new("/usr")).unwrap_err().kind(), Kind::PermissionDenied);
        }
    }

    #[test]
    fn an_installation_is_no_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = || root_path(&|n| (n == "FOREBAY_DIR").then(|| dir.path().display().to_string())).unwrap();
        assert_eq!(root(), dir.path());
        for file in ["bin/forebay", "lib/libforebay.so.0", "lib64/libforebay.a"] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            assert_eq!(root(), root_path(&|_| None).unwrap(), "{file}");
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(root(), dir.path());
    }

    #[test]
    fn the_default_root_is_named_after_the_user() {
        let uid = effective_uid().unwrap();
        assert_eq!(root_path(&|_| None).unwrap(), PathBuf::from(format!("/dev/shm/forebay-{uid}")));
        let given = root_path(&|n| (n == "FOREBAY_DIR").then(|| "/scratch/fb".to_string())).unwrap();
        assert_eq!(given, Path::new("/scratch/fb"));
    }

    #[test]
    fn file_names_are_plain() {
        assert_eq!(sanitised("T/x y", 64), "T_x_y");
        assert_eq!(sanitised("..", 64), "_..");
        assert_eq!(sanitised("", 64), "_");
        assert_eq!(sanitised(&"é".repeat(99), 10), "_".repeat(10));
    }
}
