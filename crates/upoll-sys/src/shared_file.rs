//! Memory that the processes of a run share, through a file or by fork.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use crate::syscall;

/// A file that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct SharedFile {
    /// The memory, which stays mapped.
    pub memory: NonNull<c_void>,
    /// The file.
    pub identity: Identity,
}

/// The identity of a file: its device and its inode. A mapped file keeps its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(libc::dev_t, libc::ino_t);

impl Identity {
    /// Removes `path` if it still is the name of the file. Otherwise the name stays.
    pub fn unlink(self, path: &CStr) {
        let mut found = MaybeUninit::<libc::stat>::uninit();
        let (folder, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: the path is a C string, and there is room for the result.
        let is_found = unsafe {
            syscall!(
                SYS_newfstatat,
                folder,
                path.as_ptr(),
                found.as_mut_ptr(),
                flags
            )
        };
        // SAFETY: the call has filled the result if it has succeeded.
        if is_found.is_ok() && Identity::of(unsafe { found.assume_init_ref() }) == self {
            // SAFETY: the path is a C string. Nobody could be told of an error.
            let _ = unsafe { syscall!(SYS_unlinkat, folder, path.as_ptr(), 0) };
        }
    }

    /// Returns the identity of the file that an fd is open for.
    ///
    /// # Errors
    /// The error number of `fstat(2)`.
    pub fn of_fd(fd: usize) -> Result<Self, i32> {
        status(fd).map(|found| Identity::of(&found))
    }

    fn of(found: &libc::stat) -> Self {
        Identity(found.st_dev, found.st_ino)
    }
}

/// Maps a file for reading and writing, shared with other processes. The memory stays mapped.
///
/// The file must be a regular one of exactly `size` bytes that belongs to the user whose rights the process has, and that
/// no other user may write. So the memory is there to its end, no other user can take it away, and a file that was named
/// by mistake is left alone. That user can still shorten the file, and the next access raises `SIGBUS` then. A symbolic
/// link is not followed: the program may have more rights than the users that can write to the directory.
///
/// # Errors
/// The error number. `EPERM`: the file belongs to another user, or its group or other users may write it. `EINVAL`: it is
/// no regular file, or has another size. Else those of `openat(2)` and `mmap(2)`.
pub fn map(path: &CStr, size: usize) -> Result<SharedFile, i32> {
    // A terminal does not become the controlling one, and a FIFO does not block the call.
    let flags =
        libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: the path is a C string.
    let file = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }?;
    let mapped = check(file, size).and_then(|identity| {
        let memory = map_shared(file, size, 0)?;
        Ok(SharedFile { memory, identity })
    });
    // SAFETY: the file was opened here.
    let _ = unsafe { syscall!(SYS_close, file) };
    mapped
}

/// Maps memory of zeros that is of no file. The children of this process share it.
///
/// # Errors
/// The error number of `mmap(2)`.
pub fn anonymous(size: usize) -> Result<NonNull<c_void>, i32> {
    map_shared(usize::MAX, size, libc::MAP_ANONYMOUS)
}

fn map_shared(file: usize, size: usize, flags: i32) -> Result<NonNull<c_void>, i32> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | flags;
    // SAFETY: the kernel chooses the place of new memory.
    let place = unsafe { syscall!(SYS_mmap, 0, size, access, flags, file, 0) }?;
    NonNull::new(ptr::with_exposed_provenance_mut(place)).ok_or(libc::ENOMEM)
}

fn status(file: usize) -> Result<libc::stat, i32> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the result.
    unsafe { syscall!(SYS_fstat, file, found.as_mut_ptr()) }?;
    // SAFETY: the call has succeeded, so it has filled the result.
    Ok(unsafe { found.assume_init() })
}

fn check(file: usize, size: usize) -> Result<Identity, i32> {
    let found = status(file)?;
    // SAFETY: the call takes no arguments.
    let user = unsafe { syscall!(SYS_geteuid) }?;
    let is_regular = found.st_mode & libc::S_IFMT == libc::S_IFREG;
    let is_shared = found.st_mode & (libc::S_IWGRP | libc::S_IWOTH) != 0;
    match usize::try_from(found.st_size) {
        _ if is_shared || found.st_uid as usize != user => Err(libc::EPERM),
        Ok(length) if is_regular && length == size => Ok(Identity::of(&found)),
        _ => Err(libc::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{self as unix, PermissionsExt};
    use std::path::{Path, PathBuf};
    use std::{env, fs, process};

    use super::*;

    const SIZE: usize = 5000;

    /// A folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let folder = env::temp_dir().join(format!("upoll-sys-{test}-{}", process::id()));
            // A process with this ID may have left it.
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder).expect("the name is unique");
            Folder(folder)
        }

        fn file(&self, name: &str, size: usize) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, vec![0; size]).expect("the folder is there");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn name(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
    }

    /// Returns the error number of a refused file.
    fn refused(path: &Path) -> Option<i32> {
        map(&name(path), SIZE).err()
    }

    #[test]
    fn what_is_written_to_the_memory_is_in_the_file() {
        let folder = Folder::new("shared");
        let path = folder.file("file", SIZE);
        let mapped = map(&name(&path), SIZE).expect("it is the user's");
        let place = mapped.memory.cast::<u8>();
        // SAFETY: the last of the bytes that were mapped.
        unsafe { place.add(SIZE - 1).write_volatile(7) };
        assert_eq!(fs::read(path).expect("it is there")[SIZE - 1], 7);
    }

    #[test]
    fn only_a_regular_file_of_that_size_is_mapped() {
        let folder = Folder::new("kinds");
        for size in [0, SIZE - 1, SIZE + 1] {
            assert_eq!(refused(&folder.file("other", size)), Some(libc::EINVAL));
        }
        let link = folder.0.join("link");
        unix::symlink(folder.file("file", SIZE), &link).expect("the folder is there");
        assert_eq!(refused(&link), Some(libc::ELOOP));
        // Other users may write it, too.
        assert!(matches!(
            refused(Path::new("/dev/null")),
            Some(libc::EPERM | libc::EINVAL)
        ));
        assert_eq!(refused(&folder.0), Some(libc::EISDIR));
        assert_eq!(refused(&folder.0.join("none")), Some(libc::ENOENT));
    }

    #[test]
    fn a_file_that_others_may_write_is_not_mapped() {
        let folder = Folder::new("modes");
        let path = folder.file("file", SIZE);
        for (mode, expected) in [
            (0o620, Some(libc::EPERM)),
            (0o602, Some(libc::EPERM)),
            (0o644, None),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is there");
            assert_eq!(refused(&path), expected);
        }
    }

    #[test]
    fn a_name_that_another_file_has_by_now_stays() {
        let folder = Folder::new("names");
        let path = folder.file("file", SIZE);
        let mapped = map(&name(&path), SIZE).expect("it is the user's");
        let kept = folder.0.join("kept");
        fs::rename(&path, &kept).expect("it is there");
        folder.file("file", SIZE);
        mapped.identity.unlink(&name(&path));
        assert!(path.exists());
        mapped.identity.unlink(&name(&kept));
        assert!(!kept.exists());
    }

    /// Only root can make one.
    #[test]
    fn a_file_of_another_user_is_not_mapped() {
        let folder = Folder::new("users");
        let path = folder.file("file", SIZE);
        if unix::chown(&path, Some(65534), None).is_ok() {
            assert_eq!(refused(&path), Some(libc::EPERM));
        }
    }
}
