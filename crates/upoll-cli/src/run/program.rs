//! Whether a program will load a library at all.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a program cannot be run with the library.
pub(super) enum Obstacle {
    Unreadable(io::Error),
    NotExecutable,
    Static,
    Unknown,
    Foreign,
    Privileged,
    Interpreter(PathBuf, Box<Obstacle>),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Obstacle::NotExecutable => f.write_str("is not an executable file"),
            Obstacle::Static => {
                f.write_str("is linked statically: it has no C library that could be stood in for")
            }
            Obstacle::Unknown => f.write_str(
                "is no program: if it is a script, say its interpreter in a first line with #!",
            ),
            Obstacle::Foreign => f.write_str("is for another machine than this upoll"),
            Obstacle::Privileged => f.write_str(
                "is set-user-ID, set-group-ID or has capabilities: the loader ignores libraries \
                 to load first there",
            ),
            Obstacle::Interpreter(path, obstacle) => {
                write!(f, "its interpreter {} {obstacle}", path.display())
            }
        }
    }
}

/// Finds a program as `execvp(3)` does.
pub(super) fn find(name: &OsStr) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        path.metadata()?;
        return Ok(path);
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| path.metadata().is_ok_and(|file| is_executable(&file)));
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "command not found"))
}

fn is_executable(file: &std::fs::Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

/// Whether the library will be loaded into a program.
pub(super) fn check(path: &Path) -> Result<(), Obstacle> {
    check_at(path, 0)
}

/// As many interpreters of interpreters as the kernel follows.
const DEEPEST: usize = 5;

fn check_at(path: &Path, depth: usize) -> Result<(), Obstacle> {
    let metadata = path.metadata().map_err(Obstacle::Unreadable)?;
    if !is_executable(&metadata) {
        return Err(Obstacle::NotExecutable);
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        // A program may be executable and not readable.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(Obstacle::Unreadable(error)),
    };
    let mut start = Vec::new();
    file.by_ref()
        .take(256)
        .read_to_end(&mut start)
        .map_err(Obstacle::Unreadable)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
        let interpreter = line
            .split(|byte| matches!(byte, b' ' | b'\t'))
            .find(|word| !word.is_empty());
        let Some(interpreter) = interpreter.filter(|_| depth < DEEPEST) else {
            return Ok(());
        };
        let interpreter = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
        return check_at(&interpreter, depth + 1)
            .map_err(|obstacle| Obstacle::Interpreter(interpreter, Box::new(obstacle)));
    }
    let header = Header::parse(&start)?;
    if !header.is_dynamic(&file).map_err(Obstacle::Unreadable)? {
        return Err(Obstacle::Static);
    }
    if metadata.permissions().mode() & 0o6000 != 0 || has_capabilities(path) {
        return Err(Obstacle::Privileged);
    }
    Ok(())
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: both are live C strings; nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Where an ELF file of this machine has its program headers.
struct Header {
    offset: u64,
    size: u64,
    count: u64,
}

/// `e_machine` of this program.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else {
    183
};
const CLASS_64: u8 = 2;
const PT_INTERP: u32 = 3;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl Header {
    fn parse(start: &[u8]) -> Result<Self, Obstacle> {
        if !start.starts_with(b"\x7fELF") {
            return Err(Obstacle::Unknown);
        }
        let machine = number(start, 18).map(u16::from_le_bytes);
        if start.get(4) != Some(&CLASS_64) || machine != Some(MACHINE) {
            return Err(Obstacle::Foreign);
        }
        let parse = || {
            Some(Header {
                offset: u64::from_le_bytes(number(start, 32)?),
                size: u16::from_le_bytes(number(start, 54)?).into(),
                count: u16::from_le_bytes(number(start, 56)?).into(),
            })
        };
        parse().ok_or(Obstacle::Foreign)
    }

    /// Whether a loader is named that loads libraries.
    fn is_dynamic(&self, file: &File) -> io::Result<bool> {
        for at in 0..self.count {
            let mut kind = [0; 4];
            file.read_exact_at(&mut kind, self.offset + at * self.size)?;
            if u32::from_le_bytes(kind) == PT_INTERP {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
