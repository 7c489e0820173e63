//! Demotes an object to the kernel: its state is transferred to the kernel object behind it, and from
//! then on the kernel serves its fds.
//!
//! An object is demoted when another process gets it: the child of a fork, a program that inherits
//! the fd, or a process that receives it. It is also demoted for calls that only the kernel
//! implements. A program notices only a difference in speed.

mod interests;

use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use upoll::internal::SharedBox;
use upoll::{Errno, Event, EventFd, Op};

use self::interests::{Interest, give_back, interests_in, own_interests, sets_beside};
use crate::counts;
use crate::held::{Group, Held, hold};
use crate::kernel::{call, check_open};
use crate::object::Object;
use crate::plain_sets;
use crate::set::SetWithFd;
use crate::signals::{Blocked, Section};
use crate::table;
use crate::transfer::{self, Ends, Own};
use upoll_sys::backoff::Backoff;
use upoll_sys::backoff::wait_until;

/// The error for an object that cannot be demoted (yet).
const NOT_SUPPORTED: Errno = Errno::OPNOTSUPP;

/// Demotes the object that `fd` stands for, under all its fds, and in all sets that watch it. A kernel fd is
/// left as it is.
///
/// Calls that block on the object continue with the kernel object. Sets report it once more if it is ready.
///
/// # Errors
/// - `EBADF`: the fd is not open.
/// - `EOPNOTSUPP`: an eventfd with a maximum, an object of the embedder's own, or a set that watches one of
///   these.
/// - `EBUSY`: a call on the object does not end. It is the one that the calling signal handler has interrupted, or it makes
///   no progress for five seconds.
/// - `EPERM`, `ENOMEM`, `EMFILE`, `ENFILE`, `ENOSPC`, `ELOOP`, `EINVAL`: the kernel refuses a resource, such as a
///   watch for a set that watches the object, or so many sets above each other. The object is as it was.
pub fn demote(fd: RawFd) -> Result<(), Errno> {
    let _section = Section::begin();
    let Some(object) = table::get(fd) else {
        return check_open(fd);
    };
    let result = demote_object(&object);
    let address = object.as_file_ref(fd).address();
    // So that its last owners are the fds.
    drop(object);
    match result {
        Err(errno) if lacks_fds(errno) && demote_sets_of(Some(address)) => match table::get(fd) {
            Some(object) => demote_object(&object),
            None => Ok(()),
        },
        result => result,
    }
}

fn demote_object(object: &Object) -> Result<(), Errno> {
    if let Object::Epoll(set) = object
        && !set.rotates()
        && !set.is_passive()
    {
        demote_members(set)?;
    }
    // Before its fds are held. Otherwise another thread's fork could copy the held fds to a child,
    // where they would stay held for ever instead of standing for an object of the child's own.
    if !can_go(object) {
        return Err(NOT_SUPPORTED);
    }
    let under_way = UnderWay::begin();
    let tie = object.tie();
    let held = hold(|found| found.tie() == tie, &under_way.blocked)?;
    // Without an fd, another thread was quicker, or the object was closed.
    let mut result = Ok(());
    demote_held(held, |outcome| result = result.and(outcome))?;
    result
}

/// Returns whether the kernel has such objects. A set must have no user-level members.
fn can_go(object: &Object) -> bool {
    match object {
        // A kernel eventfd has no maximum, and a shared count belongs to other processes too.
        Object::EventFd(counter) => !counter.is_shared() && counter.maximum() == u64::MAX,
        Object::PipeReader(_) | Object::PipeWriter(_) | Object::Socket(_) => true,
        Object::Epoll(set) => {
            !set.rotates() && (set.is_passive() || set.as_epoll().len_in_core() == 0)
        }
        Object::Own(_) => false,
    }
}

/// Demotes every object that can be demoted; the others stay user-level.
pub fn demote_all() {
    plain_sets::forget_all();
    if !table::has_any() {
        return;
    }
    let _section = Section::begin();
    demote_plain_eventfds();
    if table::is_none_left() {
        return;
    }
    // Sets come last: until then other threads may add members.
    let mut lacks_any = false;
    demote_where(
        |object| !object.is_set() && can_go(object),
        |outcome| lacks_any |= outcome.is_err_and(lacks_fds),
    );
    if lacks_any {
        demote_sets_of(None);
    }
    // Sets without user-level members first, then sets whose last such members these were.
    loop {
        let mut is_any = false;
        let is_meant = |object: &Object| object.is_set() && can_go(object);
        demote_where(is_meant, |outcome| is_any |= outcome.is_ok());
        if !is_any {
            break;
        }
    }
}

/// Demotes every object that can be demoted, and returns whether none is left.
///
/// Objects that are made from now on are the kernel's, for good or until this thread goes on. Where none is left,
/// calls do not touch thread-local memory until there is another object. Another thread may have the same
/// thread-local memory (`CLONE_VM` without `CLONE_SETTLS`), or a child that may be killed during a call.
pub fn leave_all_to_the_kernel() -> bool {
    demote_all();
    if !table::has_any() {
        return true;
    }
    let mut is_all = false;
    // Other threads are in the midst of changing fds, or of making what they have begun to make.
    wait_until(|| {
        let stays = |fd| demote(fd).is_err() && table::is_user_level(fd);
        let some_stay = table::user_level_fds().filter(|&fd| stays(fd)).count() > 0;
        is_all = table::is_none_left();
        is_all || some_stay
    });
    is_all
}

/// Demotes eventfds that nothing but one fd refers to. There may be thousands of them, and they need no lists of fds
/// and interests. Eventfds in use are left alone.
fn demote_plain_eventfds() {
    let is_meant = |object: &Object| matches!(object, Object::EventFd(_)) && can_go(object);
    let take = |fd, object: &Object| match object {
        Object::EventFd(counter) => counter
            .count_before_drop()
            .is_some_and(|count| give_count(count, fd).is_ok()),
        _ => false,
    };
    let under_way = UnderWay::begin();
    table::empty_unused(is_meant, take, &under_way.blocked);
}

/// Demotes all objects for which `is_meant` returns true. Calls `outcome` with the result for each group, or
/// with `ENOMEM` if there is no memory for the lists. An object that cannot be demoted is lost to other
/// processes.
fn demote_where(is_meant: impl Fn(&Object) -> bool, mut outcome: impl FnMut(Result<(), Errno>)) {
    let under_way = UnderWay::begin();
    let held = hold(is_meant, &under_way.blocked);
    if let Err(errno) = held.and_then(|held| demote_held(held, &mut outcome)) {
        outcome(Err(errno));
    }
}

/// Demotes all held objects. Calls `outcome` with the result for each group.
///
/// # Errors
/// `ENOMEM`: there is no memory for the list of interests. Nothing is demoted then.
fn demote_held(mut held: Held, mut outcome: impl FnMut(Result<(), Errno>)) -> Result<(), Errno> {
    let interests = interests_in(&held)?;
    let mut rest = &interests[..];
    for group in held.groups() {
        let own = own_interests(&mut rest, &group);
        outcome(demote_group(group, own));
    }
    Ok(())
}

fn demote_group(group: Group<'_>, interests: &[Interest]) -> Result<(), Errno> {
    // First the steps that may fail for lack of fds or memory: an interest must not be lost. Interests whose own fd is
    // open come first. An interest whose fd is closed could take that fd, and a set watches a file once under each fd.
    let (is_own, is_other) = (
        |interest: &&Interest| interest.has_own_fd(&group),
        |interest: &&Interest| !interest.has_own_fd(&group),
    );
    // Another thread may have deleted the others.
    let taken = || interests.iter().filter(|interest| interest.is_taken.get());
    let in_order = || taken().filter(is_own).chain(taken().filter(is_other));
    interests.iter().try_for_each(|interest| {
        interest.prepared?;
        if let Object::EventFd(counter) = &interest.object {
            counter.prepare_to_demote()?;
        }
        let set = interest.set.as_epoll();
        let mut fds = interest.fds_in(&group);
        fds.try_for_each(|fd| set.prepare_kernel_member(fd))
    })?;
    let ends = ends(&group)?;
    interests.iter().for_each(Interest::take);
    let reserved = in_order().try_for_each(|interest| interest.reserve(&group));
    if let Err(errno) = reserved.and_then(|()| transfer(&group, &ends)) {
        interests.iter().for_each(Interest::discard);
        give_back(interests);
        return Err(errno);
    }
    in_order().for_each(|interest| interest.give_to_the_kernel(&group));
    group.release();
    Ok(())
}

/// Transfers the state of a group's objects to the kernel objects behind them. The objects are unchanged
/// if that fails.
fn transfer(group: &Group<'_>, ends: &Ends) -> Result<(), Errno> {
    if group.is_used() {
        return Err(Errno::BUSY);
    }
    let Some((fd, object)) = group.objects().next() else {
        return Ok(());
    };
    match object {
        Object::EventFd(counter) => transfer_count(counter, fd),
        Object::PipeReader(_) | Object::PipeWriter(_) | Object::Socket(_) => {
            transfer_contents(object, ends)
        }
        // All other members are in the kernel set behind it. Another thread may have just added a
        // user-level one.
        Object::Epoll(set) if can_go(object) => set.demote(fd),
        Object::Epoll(_) | Object::Own(_) => Err(NOT_SUPPORTED),
    }
}

/// Moves the counts of eventfds with a maximum to memory that the child of a fork shares.
pub(crate) fn share_all() {
    let _section = Section::begin();
    let is_meant = |object: &Object| match object {
        Object::EventFd(counter) => !counter.is_shared() && !counter.is_stale(),
        _ => false,
    };
    let under_way = UnderWay::begin();
    // Without memory or fds for that, the child does not get the eventfds.
    let Ok(mut held) = hold(is_meant, &under_way.blocked) else {
        return;
    };
    let Ok(interests) = interests_in(&held) else {
        return;
    };
    let mut rest = &interests[..];
    for group in held.groups() {
        let own = own_interests(&mut rest, &group);
        match shared(&group, own) {
            Some(shared) => group.release_to(&shared),
            None => give_back(own),
        }
    }
}

/// Moves the count of an eventfd to a shared one, if there is memory and all else for that. The sets of `interests`
/// watch it then.
fn shared(group: &Group<'_>, interests: &[Interest]) -> Option<Object> {
    let (_, Object::EventFd(counter)) = group.objects().next()? else {
        return None;
    };
    if group.is_used() {
        return None;
    }
    let shared = counter.shared_copy().ok()??;
    let successor = Object::EventFd(shared.clone());
    // The count is moved once nothing can fail any more. If something does, the last reference to the copy goes, and
    // with it the interests in the copy.
    // A shared eventfd reports its changes through the kernel.
    interests
        .iter()
        .try_for_each(|interest| interest.prepared)
        .ok()?;
    for interest in interests {
        interest.take();
        interest.add(&successor).ok()?;
    }
    (counter.move_to_shared(&shared) == Ok(true)).then_some(successor)
}

/// Demotes the user-level objects among `fds`, so that the kernel serves a call for which this library lacks
/// fds or memory. Returns whether there were any.
#[cold]
pub(crate) fn demote_any(fds: impl Iterator<Item = RawFd>) -> bool {
    fds.filter(|&fd| table::is_user_level(fd) && demote(fd).is_ok())
        .count()
        > 0
}

/// Demotes a user-level object that no set watches. No set needs fds for it.
///
/// # Errors
/// `EINVAL`: the object is not user-level. `EBUSY`: a set watches it. Else as [`demote`].
pub(crate) fn demote_unwatched(fd: RawFd) -> Result<(), Errno> {
    let _section = Section::begin();
    let object = table::get(fd).ok_or(Errno::INVAL)?;
    let is_watched = table::fds(0, u32::MAX).any(|epfd| {
        let set = table::get(epfd);
        let interests = |set: &SetWithFd| set.as_epoll().interests_in(object.as_file_ref(0));
        // If there is no memory to find out, a set may watch it.
        let is_free = |set| interests(set).is_ok_and(|found| found.is_empty());
        matches!(&set, Some(Object::Epoll(set)) if !is_free(set))
    });
    match is_watched {
        true => Err(Errno::BUSY),
        false => demote(fd),
    }
}

/// Returns whether a call failed because there is no fd.
fn lacks_fds(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Demotes sets [with their members](demote_with_members), which needs no fd: the one at `address` and those that watch the
/// file there, or all. Returns whether there were any.
#[cold]
fn demote_sets_of(address: Option<usize>) -> bool {
    let is_meant = |object: &Object| match object {
        Object::Epoll(set) => address.is_none_or(|address| {
            let is_found = |found| (found == address).then_some(());
            let interests = set.as_epoll().interests_by(is_found);
            object.as_file_ref(0).address() == address
                || interests.is_ok_and(|interests| !interests.is_empty())
        }),
        _ => false,
    };
    table::fds(0, u32::MAX)
        .filter(|&fd| table::with(fd, is_meant) == Some(true) && demote_with_members(fd).is_ok())
        .count()
        > 0
}

/// Demotes a set without a place for kernel members, together with its members, which are eventfds. This needs no fd: the
/// kernel set behind the set's fds gets the interests.
///
/// # Errors
/// `EOPNOTSUPP`: the set has other members, or an eventfd with a maximum, or cannot be demoted. `EBUSY`: a call uses the
/// set or a member, or another set watches one of them. `ENOMEM`, `ENOSPC`: there is no memory or no watch for it. `EMFILE`:
/// the set has an interest under each open fd of a member, and more under closed ones. All is as it was then.
pub(crate) fn demote_with_members(epfd: RawFd) -> Result<(), Errno> {
    let _section = Section::begin();
    let Some(Object::Epoll(set)) = table::get(epfd) else {
        return Err(NOT_SUPPORTED);
    };
    if set.rotates() || set.is_passive() || set.as_epoll().has_kernel_set() {
        return Err(NOT_SUPPORTED);
    }
    let watched = addresses(&set)?;
    let is_member = |object: &Object| watched.contains(&object.as_file_ref(0).address());
    // Before their fds are held, as in `demote`.
    let is_other = |object: &Object| {
        is_member(object) && !(matches!(object, Object::EventFd(_)) && can_go(object))
    };
    if table::fds(0, u32::MAX).any(|fd| table::with(fd, is_other) == Some(true)) {
        return Err(NOT_SUPPORTED);
    }
    let is_meant = |object: &Object| match object {
        Object::Epoll(found) => SharedBox::ptr_eq(found, &set),
        _ => is_member(object),
    };
    let under_way = UnderWay::begin();
    let mut held = hold(is_meant, &under_way.blocked)?;
    let own = set.as_epoll().as_file_ref().address();
    for (_, other) in sets_beside(&held)? {
        let is_either = |address| (address == own || watched.contains(&address)).then_some(());
        if !other.as_epoll().interests_by(is_either)?.is_empty() {
            return Err(Errno::BUSY);
        }
    }
    let (groups, places) = set_and_eventfds(held.groups())?;
    let find = |address| places.get(&address).copied();
    let interests = set.as_epoll().interests_by(find)?;
    if interests.len() != set.as_epoll().len_in_core() {
        // A member has no fd any more.
        return Err(NOT_SUPPORTED);
    }
    // Another thread may have replaced `epfd` before the fds were held.
    let of_the_set = |group: &Group<'_>| group.objects().any(|(_, object)| object.is_set());
    let mut sets = groups.iter().filter(|group| of_the_set(group));
    let epfd = sets.next().ok_or(NOT_SUPPORTED)?.first();
    if set.as_epoll().has_kernel_set() {
        return Err(NOT_SUPPORTED);
    }
    add_to_the_kernels(epfd, &groups, &interests)?;
    for group in groups {
        let transferred = of_the_set(&group) || transfer(&group, &Ends::default()).is_ok();
        debug_assert!(
            transferred,
            "it is held and has its memory and no maximum, and the kernel object counts 0"
        );
        group.release();
    }
    Ok(())
}

/// Returns the held groups of [`demote_with_members`], and the index of each eventfd's group by the eventfd's address.
///
/// # Errors
/// `EBUSY`: a call uses one of the objects. `EOPNOTSUPP`: an eventfd has a maximum by now. `ENOMEM`.
fn set_and_eventfds<'a>(
    held: impl Iterator<Item = Group<'a>>,
) -> Result<(Vec<Group<'a>>, HashMap<usize, usize>), Errno> {
    let (mut groups, mut places) = (Vec::new(), HashMap::new());
    for group in held {
        if group.is_used() {
            return Err(Errno::BUSY);
        }
        for (_, object) in group.objects() {
            match object {
                // One more owner is the caller.
                Object::Epoll(_) if group.is_owned_by_one_more() => {}
                Object::Epoll(_) => return Err(Errno::BUSY),
                Object::EventFd(counter) if can_go(object) => {
                    counter.prepare_to_demote()?;
                    places.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                    places.insert(object.as_file_ref(0).address(), groups.len());
                }
                _ => return Err(NOT_SUPPORTED),
            }
        }
        groups.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        groups.push(group);
    }
    Ok((groups, places))
}

/// Adds interests in objects of `groups` to the kernel set that `epfd` stands for, all or none. Each has the index of
/// its group.
fn add_to_the_kernels(
    epfd: RawFd,
    groups: &[Group<'_>],
    interests: &[(usize, RawFd, Event)],
) -> Result<(), Errno> {
    let change = |op: Op, fd: RawFd, event: Event| {
        // SAFETY: the event is live, and has the layout of an epoll_event.
        unsafe { call!(SYS_epoll_ctl, epfd, op as i32, fd, &raw const event) }
    };
    let fds = |at: usize| groups[at].objects().map(|(fd, _)| fd);
    let is_open = |&&(at, own, _): &&(usize, RawFd, Event)| fds(at).any(|fd| fd == own);
    // As in `demote_group`: the interest of a closed fd could take the fd of another one.
    let open = interests.iter().filter(is_open);
    let in_order = open.chain(interests.iter().filter(|interest| !is_open(interest)));
    let mut added: Vec<(RawFd, Option<Own>)> = Vec::new();
    added
        .try_reserve(interests.len())
        .map_err(|_| Errno::NOMEM)?;
    for interest @ &(at, own, event) in in_order {
        let own = Some(own).filter(|_| is_open(&interest));
        let spare = match own {
            Some(_) => None,
            None => Own::copy(groups[at].first()).ok(),
        };
        let spare_fd = spare.as_ref().map(Own::fd);
        let mut all = own.into_iter().chain(spare_fd).chain(fds(at));
        let done = all.find_map(|fd| match change(Op::Add, fd, event) {
            Err(Errno::EXIST) => None,
            result => Some(result.map(|_| fd)),
        });
        match done.unwrap_or(Err(Errno::MFILE)) {
            Ok(fd) => added.push((fd, spare)),
            Err(errno) => {
                for &(fd, _) in &added {
                    let deleted = change(Op::Del, fd, Event::default());
                    debug_assert!(deleted.is_ok(), "it was just added");
                }
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Demotes the members of a set, and those of sets below it. The set can be demoted only if all its
/// members can.
///
/// # Errors
/// As [`demote`], for a member that can be demoted.
fn demote_members(set: &SetWithFd) -> Result<(), Errno> {
    let watched = addresses(set)?;
    let mut ties = HashSet::new();
    counts::repeat_passes(|| {
        for fd in table::fds(0, u32::MAX) {
            let member = table::with(fd, |object| {
                let is_watched = watched.contains(&object.as_file_ref(0).address());
                is_watched.then(|| (object.is_set(), object.tie()))
            });
            ties.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            match member.flatten() {
                Some((true, _)) => match demote(fd) {
                    Ok(()) | Err(NOT_SUPPORTED) => {}
                    Err(errno) => return Err(errno),
                },
                Some((false, tie)) => drop(ties.insert(tie)),
                None => {}
            }
        }
        Ok::<_, Errno>(false)
    })?;
    let mut result = Ok(());
    let is_meant = |object: &Object| ties.contains(&object.tie()) && can_go(object);
    demote_where(is_meant, |outcome| result = result.and(outcome));
    result
}

/// Returns the address of each user-level file that a set watches.
fn addresses(set: &SetWithFd) -> Result<HashSet<usize>, Errno> {
    let interests = set.as_epoll().interests_by(Some)?;
    let mut addresses = HashSet::new();
    addresses
        .try_reserve(interests.len())
        .map_err(|_| Errno::NOMEM)?;
    addresses.extend(interests.into_iter().map(|(address, ..)| address));
    Ok(addresses)
}

/// One demotion at a time: each waits for fds that another one might hold. Not a `Mutex`: the child
/// of a fork must take it over from a thread that it does not have.
static IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// A demotion under way. Signals are blocked: a handler that demotes an object would wait for its
/// own thread.
struct UnderWay {
    blocked: Blocked,
}

impl UnderWay {
    fn begin() -> Self {
        let mut backoff = Backoff::new();
        loop {
            let blocked = Blocked::all();
            if !IS_UNDER_WAY.swap(true, Ordering::Acquire) {
                return UnderWay { blocked };
            }
            drop(blocked);
            backoff.wait();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        IS_UNDER_WAY.store(false, Ordering::Release);
    }
}

/// Resets the state in the child of a fork: no demotion is under way here.
pub(crate) fn forget_other_threads() {
    if IS_UNDER_WAY.load(Ordering::Relaxed) {
        IS_UNDER_WAY.store(false, Ordering::Relaxed);
    }
}

fn transfer_count(counter: &EventFd, fd: RawFd) -> Result<(), Errno> {
    let count = match counter.count_before_drop() {
        // The reference is that of the entry, which no call uses, and which is released next.
        Some(count) => count,
        // The eventfd may have got a maximum meanwhile.
        None => counter.demote()?.ok_or(NOT_SUPPORTED)?,
    };
    give_count(count, fd)
}

/// Adds a count to the kernel's eventfd, which counts 0.
fn give_count(count: u64, fd: RawFd) -> Result<(), Errno> {
    if count > 0 {
        // Any smaller count fits. Nobody has signalled 2^64 times.
        let count = count.min(u64::MAX - 1);
        // SAFETY: `count` is live.
        unsafe { call!(SYS_write, fd, &raw const count, size_of::<u64>()) }?;
    }
    Ok(())
}

/// Returns the fds of both ends of a pipe, or of both sockets of a pair. Other objects have none.
///
/// # Errors
/// `ENOMEM`: there is no memory for the lists.
fn ends(group: &Group<'_>) -> Result<Ends, Errno> {
    let mut ends = Ends::default();
    let Some((_, first)) = group.objects().next() else {
        return Ok(ends);
    };
    for (fd, end) in group.objects() {
        let fds = match end {
            Object::PipeReader(_) => &mut ends.one,
            Object::PipeWriter(_) => &mut ends.other,
            Object::Socket(_) if end.is_same_file(first) => &mut ends.one,
            Object::Socket(_) => &mut ends.other,
            Object::EventFd(_) | Object::Epoll(_) | Object::Own(_) => continue,
        };
        fds.try_reserve(1).map_err(|_| Errno::NOMEM)?;
        fds.push(fd);
    }
    Ok(ends)
}

/// Transfers both ends of a pipe, or both sockets of a pair, together.
fn transfer_contents(first: &Object, ends: &Ends) -> Result<(), Errno> {
    match first {
        Object::PipeReader(end) => {
            let capacity = end.capacity();
            end.demote(|pages| transfer::pipe(pages, capacity, ends))
        }
        Object::PipeWriter(end) => {
            let capacity = end.capacity();
            end.demote(|pages| transfer::pipe(pages, capacity, ends))
        }
        Object::Socket(socket) => socket.demote(|contents| transfer::sockets(&contents, ends)),
        _ => Err(NOT_SUPPORTED),
    }
}
