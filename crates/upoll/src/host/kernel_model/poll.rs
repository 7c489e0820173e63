//! `poll(2)` and `select(2)`.

use super::*;

/// Returns the events that an fd shows now.
pub(in crate::host) fn poll_by_fd(fd: RawFd, wanted: Events) -> Result<Events, Errno> {
    Ok(Used::of(fd)?.poll() & (wanted | Events::ALWAYS))
}

pub(in crate::host) fn is_readable(fd: &Descriptor) -> bool {
    let is_readable = fd.call(|fd| Ok(Used::of(fd)?.poll().contains(Events::IN)));
    is_readable.unwrap_or_else(|_| {
        fd.is_lost_after_failure();
        false
    })
}

pub(crate) fn ppoll(
    list: &mut [libc::pollfd],
    limit: Option<&libc::timespec>,
    _: SignalMask<'_>,
) -> Result<usize, Errno> {
    let until = match is_zero(limit) {
        true => None,
        false => until(limit.copied()),
    };
    let files: Vec<_> = list.iter().map(|entry| Used::of(entry.fd).ok()).collect();
    let mut ended = Ended::default();
    loop {
        let mut found = 0;
        let sleep = Sleep::new(until);
        for (entry, file) in list.iter_mut().zip(&files) {
            entry.revents = match file {
                Some(file) => {
                    let wanted = Events::from_bits_retain(entry.events.cast_unsigned().into());
                    // Registered, then looked at.
                    file.lock().pollers.push((sleep.clone(), wanted));
                    let ready = (file.poll() & wanted).bits();
                    i16::try_from(ready).expect("the low ones")
                }
                None if entry.fd < 0 => 0,
                None => libc::POLLNVAL,
            };
            found += usize::from(entry.revents != 0);
        }
        let is_over = found > 0 || is_zero(limit) || ended.timed_out || ended.interrupted;
        let how = match is_over {
            true => Ended::default(),
            false => sleep.sleep(),
        };
        for file in files.iter().flatten() {
            file.lock()
                .pollers
                .retain(|(poller, _)| !Arc::ptr_eq(poller, &sleep));
        }
        if is_over {
            return match ended.interrupted && found == 0 {
                true => Err(Errno::INTR),
                false => Ok(found),
            };
        }
        ended = how;
    }
}

/// `pselect`, by `ppoll`.
///
/// # Safety
/// Each bitmap is null or holds all fds below `end`.
pub(crate) unsafe fn pselect(
    end: RawFd,
    sets: [*mut libc::fd_set; 3],
    limit: Option<&libc::timespec>,
    mask: SignalMask<'_>,
) -> Result<usize, Errno> {
    use crate::select::REPORTED;
    // SAFETY: the caller's contract.
    let is_in = |set: *mut libc::fd_set, fd| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
    let mut list: Vec<_> = (0..end)
        .filter(|&fd| sets.iter().any(|&set| is_in(set, fd)))
        .map(|fd| {
            let wanted = sets.iter().zip(REPORTED);
            let wanted = wanted.filter(|&(&set, _)| is_in(set, fd));
            let wanted = wanted.fold(Events::empty(), |all, (_, reported)| all | reported);
            libc::pollfd {
                fd,
                events: i16::try_from(wanted.bits()).expect("the low ones"),
                revents: 0,
            }
        })
        .collect();
    ppoll(&mut list, limit, mask)?;
    let mut found = 0;
    for entry in &list {
        let ready = Events::from_bits_retain(entry.revents.cast_unsigned().into());
        for (&set, reported) in sets.iter().zip(REPORTED) {
            if !is_in(set, entry.fd) {
                continue;
            }
            match ready.intersects(reported) {
                true => found += 1,
                // SAFETY: as above.
                false => unsafe { libc::FD_CLR(entry.fd, set) },
            }
        }
    }
    Ok(found)
}
