//! Threads that share a processor.

/// Pins this thread and the threads that it starts to one processor, under `SCHED_BATCH`. A wakeup
/// then never preempts the running thread: other threads run only when it yields, or when its time
/// slice of some milliseconds is over.
pub fn run_on_one_processor() {
    // SAFETY: plain structures, for which zero is a value, that the calls only read or fill.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(
            libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus),
            0
        );
        let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &cpus));
        libc::CPU_ZERO(&mut cpus);
        libc::CPU_SET(first.unwrap(), &mut cpus);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus),
            0
        );
        let parameters: libc::sched_param = std::mem::zeroed();
        assert_eq!(
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters),
            0
        );
    }
}
