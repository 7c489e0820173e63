//! Checks whether the loader will load the library into a program.

use std::ffi::{CStr, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use elf::ElfStream;
use elf::abi::{ELFMAGIC, EM_AARCH64, EM_X86_64, PT_INTERP};
use elf::endian::NativeEndian;
use elf::file::Class;

/// The reason why a program cannot be run with the library.
pub(super) enum Obstacle {
    Unreadable(io::Error),
    NotExecutable,
    Static,
    OtherLibrary(PathBuf),
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
            Obstacle::OtherLibrary(loader) => write!(
                f,
                "is linked to another C library than glibc, as its loader {} says: the library \
                 stands in for glibc's functions",
                loader.display()
            ),
            Obstacle::Unknown => f.write_str("is neither a program nor a script"),
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
    which::which_in(name, Some(folders), ".")
        .map_err(|_| io::Error::new(io::ErrorKind::NotFound, "command not found"))
}

fn is_executable(file: &std::fs::Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

/// Checks that the library will be loaded into a program.
pub(super) fn check(path: &Path) -> Result<(), Obstacle> {
    check_at(path, 0)
}

/// The number of nested interpreters that the kernel follows.
const DEEPEST: usize = 5;

fn check_at(path: &Path, depth: usize) -> Result<(), Obstacle> {
    let metadata = path.metadata().map_err(Obstacle::Unreadable)?;
    if !is_executable(&metadata) {
        return Err(Obstacle::NotExecutable);
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        // A program may be executable but not readable.
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
    if depth == 0 && is_text(&start) {
        // `execvp(3)` has the shell run it.
        let shell = PathBuf::from(SHELL);
        return check_at(&shell, DEEPEST)
            .map_err(|obstacle| Obstacle::Interpreter(shell, Box::new(obstacle)));
    }
    if !start.starts_with(&ELFMAGIC) {
        return Err(Obstacle::Unknown);
    }
    let loader = loader(file).ok_or(Obstacle::Foreign)?;
    let loader = loader.ok_or(Obstacle::Static)?;
    if is_of_another_library(&loader) {
        return Err(Obstacle::OtherLibrary(loader));
    }
    if metadata.permissions().mode() & 0o6000 != 0 || has_capabilities(path) {
        return Err(Obstacle::Privileged);
    }
    Ok(())
}

/// `_PATH_BSHELL`
const SHELL: &str = "/bin/sh";

/// Returns whether a shell takes this for the beginning of a script: the first line has no zero
/// byte.
fn is_text(start: &[u8]) -> bool {
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or(start);
    !start.starts_with(&ELFMAGIC) && !line.contains(&0)
}

/// Returns whether the loader is that of a C library other than glibc. Not all such loaders have a
/// name of their own: some begin with `ld-linux`.
fn is_of_another_library(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().to_string_lossy();
    ["musl", "uClibc", "linker"]
        .iter()
        .any(|other| name.contains(other))
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: both are live C strings; nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// The ELF machine of this program.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    EM_X86_64
} else {
    EM_AARCH64
};

/// Returns the loader that an ELF file names, if it names one. Returns `None` for a file that this
/// machine cannot run.
fn loader(file: File) -> Option<Option<PathBuf>> {
    let mut elf = ElfStream::<NativeEndian, _>::open_stream(file).ok()?;
    if elf.ehdr.class != Class::ELF64 || elf.ehdr.e_machine != MACHINE {
        return None;
    }
    let mut segments = elf.segments().iter();
    let Some(named) = segments
        .find(|segment| segment.p_type == PT_INTERP)
        .copied()
    else {
        return Some(None);
    };
    let path = CStr::from_bytes_until_nul(elf.segment_data(&named).ok()?).ok()?;
    Some(Some(OsStr::from_bytes(path.to_bytes()).into()))
}

#[cfg(test)]
mod tests {
    use elf::abi::{ELFCLASS64, ELFDATA2LSB, EV_CURRENT};

    use super::*;

    /// An executable file that is removed on drop.
    struct Executable(PathBuf);

    impl Executable {
        fn new(name: &str, content: &[u8]) -> Self {
            let name = format!("upoll-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, content).unwrap();
            let mut permissions = path.metadata().unwrap().permissions();
            permissions.set_mode(0o755);
            std::fs::set_permissions(&path, permissions).unwrap();
            Executable(path)
        }
    }

    impl Drop for Executable {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Returns an ELF file that names `loader`, if any.
    fn program(loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..4].copy_from_slice(&ELFMAGIC);
        file[4..7].copy_from_slice(&[ELFCLASS64, ELFDATA2LSB, EV_CURRENT]);
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        if let Some(loader) = loader {
            file[64..68].copy_from_slice(&PT_INTERP.to_le_bytes());
            file[64 + 8..64 + 16].copy_from_slice(&120_u64.to_le_bytes());
            let length = loader.len() as u64 + 1;
            file[64 + 32..64 + 40].copy_from_slice(&length.to_le_bytes());
            file.extend_from_slice(loader.as_bytes());
            file.push(0);
        }
        file
    }

    #[test]
    fn programs_of_another_c_library_are_refused_by_name() {
        for (loader, is_fine) in [
            ("/lib64/ld-linux-x86-64.so.2", true),
            ("/gnu/store/x/ld-linux-aarch64.so.1", true),
            ("/lib/ld-musl-x86_64.so.1", false),
            ("/system/bin/linker64", false),
        ] {
            let file = Executable::new("program", &program(Some(loader)));
            match check(&file.0) {
                Ok(()) => assert!(is_fine, "{loader}"),
                Err(obstacle) => {
                    assert!(!is_fine, "{loader}: {obstacle}");
                    assert!(obstacle.to_string().contains(loader), "{obstacle}");
                }
            }
        }
        let file = Executable::new("static", &program(None));
        assert!(matches!(check(&file.0), Err(Obstacle::Static)));
    }

    #[test]
    fn scripts_that_name_no_interpreter_are_the_shells() {
        let script = Executable::new("script", b"echo $1\n");
        assert!(check(&script.0).is_ok());
        let data = Executable::new("data", b"MZ\x90\0\n");
        assert!(matches!(check(&data.0), Err(Obstacle::Unknown)));
    }
}
