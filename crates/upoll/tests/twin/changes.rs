//! Random changes of sets.

use proptest::prelude::*;
use upoll::Events;

/// The operations of `epoll_ctl(2)`. ADD is drawn most often, so that there is something to change.
pub fn ops() -> impl Strategy<Value = i32> {
    prop::sample::select(vec![
        libc::EPOLL_CTL_ADD,
        libc::EPOLL_CTL_ADD,
        libc::EPOLL_CTL_MOD,
        libc::EPOLL_CTL_DEL,
    ])
}

/// Interests in one of `wanted`, each with one of the usual flags or of `flags`.
pub fn interests(wanted: &[Events], flags: &[Events]) -> impl Strategy<Value = Events> + use<> {
    let usual = [
        Events::empty(),
        Events::ET,
        Events::ET,
        Events::ONESHOT,
        Events::ET | Events::ONESHOT,
    ];
    let wanted = prop::sample::select(wanted.to_vec());
    let flags = prop::sample::select([&usual, flags].concat());
    (wanted, flags).prop_map(|(wanted, flags)| wanted | flags)
}
