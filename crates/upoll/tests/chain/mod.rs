//! Sets in sets.

use upoll::{CreateFlags, Epoll, Event, Events};

/// Returns sets, each of which watches the next. The last one has `flags`.
pub fn chain(flags: CreateFlags) -> [Epoll; 3] {
    let sets = [CreateFlags::empty(), CreateFlags::empty(), flags];
    let sets = sets.map(|flags| Epoll::create(flags).unwrap());
    for pair in sets.windows(2) {
        pair[0].add(&pair[1], Event::new(Events::IN, 0)).unwrap();
    }
    sets
}
