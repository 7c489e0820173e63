//! The simulator among the examples: the same trace each time, and the planted fault is found.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

#[path = "../examples/simulator.rs"]
mod simulator;

use simulator::simulate;

#[test]
fn the_same_seed_gives_the_same_trace() {
    for takes_all in [true, false] {
        for seed in 0..50 {
            assert_eq!(simulate(seed, takes_all), simulate(seed, takes_all));
        }
    }
    let [one, other] = [1, 2].map(|seed| simulate(seed, true).unwrap());
    assert_ne!(one, other);
}

#[test]
fn all_requests_are_answered_in_time() {
    for seed in 0..200 {
        let (trace, gave_up) = simulate(seed, true).unwrap();
        assert_eq!(gave_up, 0, "{trace}");
        assert_eq!(trace.matches("has its answer").count(), 15);
    }
}

#[test]
fn a_lost_wakeup_is_found() {
    let lost = |&seed: &u64| simulate(seed, false).unwrap().1 > 0;
    let found = (0..50).filter(lost).count();
    assert!(found > 0, "no run of 50 finds the fault");
}
