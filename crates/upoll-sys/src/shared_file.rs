//! Memory that the processes of a run share through a file.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use crate::syscall;

/// Maps a file for reading and writing, shared with other processes. The memory stays mapped.
///
/// The file must be a regular one of exactly `size` bytes that belongs to the user whose rights the process has. So the
/// memory is there to its end, no other user can take it away, and a file that was named by mistake is left alone. That
/// user can still shorten the file, and the next access raises `SIGBUS` then. A symbolic link is not followed: the program
/// may have more rights than the users that can write to the directory.
///
/// # Errors
/// The error number. `EPERM`: the file belongs to another user. `EINVAL`: it is no regular file, or has another size. Else
/// those of `openat(2)` and `mmap(2)`.
pub fn map(path: &CStr, size: usize) -> Result<NonNull<c_void>, i32> {
    // Nothing happens to a terminal or a FIFO that has the name.
    let flags =
        libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: the path is a C string.
    let file = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }?;
    let mapped = check(file, size).and_then(|()| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place of new memory.
        unsafe { syscall!(SYS_mmap, 0, size, access, libc::MAP_SHARED, file, 0) }
    });
    // SAFETY: the file was opened here.
    let _ = unsafe { syscall!(SYS_close, file) };
    NonNull::new(ptr::with_exposed_provenance_mut(mapped?)).ok_or(libc::ENOMEM)
}

fn check(file: usize, size: usize) -> Result<(), i32> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the result.
    unsafe { syscall!(SYS_fstat, file, found.as_mut_ptr()) }?;
    // SAFETY: the call has succeeded, so it has filled the result.
    let found = unsafe { found.assume_init() };
    // SAFETY: the call takes no arguments.
    let user = unsafe { syscall!(SYS_geteuid) }?;
    let is_regular = found.st_mode & libc::S_IFMT == libc::S_IFREG;
    match usize::try_from(found.st_size) {
        _ if found.st_uid as usize != user => Err(libc::EPERM),
        Ok(length) if is_regular && length == size => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs as unix;
    use std::path::{Path, PathBuf};
    use std::{env, fs, process};

    use super::*;

    const SIZE: usize = 5000;

    /// A folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let folder = env::temp_dir().join(format!("upoll-sys-{test}-{}", process::id()));
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

    fn map_path(path: &Path) -> Result<NonNull<c_void>, i32> {
        map(
            &CString::new(path.as_os_str().as_bytes()).expect("no zero byte"),
            SIZE,
        )
    }

    #[test]
    fn what_is_written_to_the_memory_is_in_the_file() {
        let folder = Folder::new("shared");
        let path = folder.file("file", SIZE);
        let place = map_path(&path).expect("it is the user's").cast::<u8>();
        // SAFETY: the last of the bytes that were mapped.
        unsafe { place.add(SIZE - 1).write_volatile(7) };
        assert_eq!(fs::read(path).expect("it is there")[SIZE - 1], 7);
    }

    #[test]
    fn only_a_regular_file_of_that_size_is_mapped() {
        let folder = Folder::new("kinds");
        for size in [0, SIZE - 1, SIZE + 1] {
            assert_eq!(map_path(&folder.file("other", size)), Err(libc::EINVAL));
        }
        let link = folder.0.join("link");
        unix::symlink(folder.file("file", SIZE), &link).expect("the folder is there");
        assert_eq!(map_path(&link), Err(libc::ELOOP));
        assert_eq!(map_path(Path::new("/dev/null")), Err(libc::EINVAL));
        assert_eq!(map_path(&folder.0.join("none")), Err(libc::ENOENT));
    }

    /// Only root can make one.
    #[test]
    fn a_file_of_another_user_is_not_mapped() {
        let folder = Folder::new("users");
        let path = folder.file("file", SIZE);
        if unix::chown(&path, Some(65534), None).is_ok() {
            assert_eq!(map_path(&path), Err(libc::EPERM));
        }
    }
}
