/* A filter (seccomp) allows the program's own system calls and those that upoll(1) lists for user-level
 * objects. No other one is made. The filter is there before the first object. */
#include "../c/check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#ifdef KERNEL_ONLY
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#endif

/* The list of upoll(1). */
static const int listed[] = {
	SYS_close, SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2,
	SYS_eventfd2, SYS_fcntl, SYS_fstat, SYS_futex, SYS_get_robust_list, SYS_getpid, SYS_getrandom,
	SYS_getsockopt, SYS_gettid, SYS_getuid, SYS_kcmp, SYS_membarrier, SYS_mmap, SYS_mremap, SYS_munmap,
	SYS_nanosleep, SYS_newfstatat, SYS_openat, SYS_ppoll, SYS_prlimit64, SYS_process_vm_readv, SYS_pselect6,
	SYS_read, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigtimedwait, SYS_rt_tgsigqueueinfo,
	SYS_sched_yield, SYS_set_robust_list, SYS_sigaltstack, SYS_socket, SYS_tgkill, SYS_write,
};

/* The calls of this program, and of the C library for its threads and processes. */
static const int own[] = {
	SYS_pipe2, SYS_socketpair, SYS_readv, SYS_writev, SYS_sendto, SYS_recvfrom, SYS_ioctl, SYS_shutdown,
	SYS_setsockopt, SYS_clone, SYS_clone3, SYS_rseq, SYS_mprotect, SYS_madvise, SYS_exit,
	SYS_exit_group, SYS_wait4, SYS_rt_sigreturn, SYS_clock_nanosleep, SYS_timerfd_create, SYS_setitimer,
	SYS_sendmsg, SYS_recvmsg, SYS_close_range, SYS_brk,
#ifdef __x86_64__
	SYS_dup2, SYS_poll, SYS_epoll_wait, SYS_pipe, SYS_alarm,
#endif
};

static int has_filter(void)
{
	struct sock_filter filter[256];
	unsigned short at = 0;
	struct sock_fprog program = {0, filter};
	size_t each, count = sizeof listed / sizeof *listed + sizeof own / sizeof *own;
	filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (each = 0; each < count; each++) {
		const size_t first = sizeof listed / sizeof *listed;
		unsigned number = (unsigned)(each < first ? listed[each] : own[each - first]);
		filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
		filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	program.len = at;
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int counter, set, outer, ends[2], pair[2], timer;

static void on_signal(int signal)
{
	uint64_t value = 1;
	(void)signal;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
}

static void *wakes(void *nothing)
{
	sleep_ms(20);
	CHECK(eventfd_write(counter, 1) == 0);
	return nothing;
}

static void in_poll(void)
{
	struct pollfd entries[3] = {{counter, POLLIN, 0}, {timer, POLLIN, 0}, {outer, POLLIN, 0}};
	CHECK(poll(entries, 3, -1) >= 1 && entries[0].revents == POLLIN);
}

static void in_select(void)
{
	fd_set in;
	FD_ZERO(&in);
	FD_SET(counter, &in);
	FD_SET(timer, &in);
	CHECK(select((counter > timer ? counter : timer) + 1, &in, NULL, NULL, NULL) == 1);
}

static void in_ppoll(void)
{
	struct pollfd entry = {counter, POLLIN, 0};
	sigset_t none;
	sigemptyset(&none);
	CHECK(ppoll(&entry, 1, NULL, &none) == 1);
}

static void in_set(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(outer, &event, 1, -1) == 1 && epoll_wait(set, &event, 1, 60000) == 1);
}

static void in_set_with_mask(void)
{
	struct epoll_event event;
	sigset_t none;
	sigemptyset(&none);
	CHECK(epoll_pwait(set, &event, 1, -1, &none) == 1);
}

static void waits(void (*how)(void))
{
	pthread_t thread;
	uint64_t value;
	CHECK(pthread_create(&thread, NULL, wakes, NULL) == 0);
	how();
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 1);
}

static void *blocks(void *nothing)
{
	char byte;
	CHECK(read(ends[0], &byte, 1) != 1);
	return nothing;
}

static void uses_all(void)
{
	uint64_t maximum;
	char bytes[9] = "bytes";
	struct iovec parts[9];
	pthread_t thread;
	void *result;
	int at, copy, status;
	pid_t child;

	CHECK((counter = eventfd(0, EFD_NONBLOCK)) >= 0 && (timer = timerfd_create(CLOCK_MONOTONIC, 0)) >= 0);
	CHECK((set = epoll_create1(0)) >= 0 && (outer = epoll_create1(0)) >= 0);
	CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(set, timer, EPOLLIN, 2) == 0);
	CHECK(add(set, ends[0], EPOLLIN, 3) == 0 && add(outer, set, EPOLLIN, 4) == 0);
	waits(in_poll), waits(in_select), waits(in_ppoll), waits(in_set), waits(in_set_with_mask);

	for (at = 0; at < 9; at++)
		parts[at] = (struct iovec){bytes + at, 1};
	CHECK(writev(ends[1], parts, 9) == 9 && readv(ends[0], parts, 9) == 9);
	CHECK(send(pair[0], bytes, 5, 0) == 5 && recv(pair[1], bytes, 5, MSG_PEEK) == 5);
	CHECK(ioctl(pair[1], FIONREAD, &status) == 0 && status == 5);
	CHECK(shutdown(pair[0], SHUT_WR) == 0);

	copy = dup(counter);
	CHECK(copy >= 0 && dup2(counter, 400) == 400 && dup3(counter, 401, O_CLOEXEC) == 401);
	CHECK(fcntl(counter, F_SETFL, O_NONBLOCK) == 0 && dup2(counter, 1000) == 1000);
	CHECK(close(copy) == 0 && close(400) == 0 && close_range(401, 1000, 0) == 0);

	CHECK(raise(SIGUSR1) == 0);
	CHECK(eventfd_read(counter, &maximum) == 0 && maximum == 1);
	CHECK(pthread_create(&thread, NULL, blocks, NULL) == 0);
	sleep_ms(20);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);

	/* The kernel's eventfd has no maximum. */
	copy = eventfd(0, EFD_NONBLOCK), maximum = 10;
	CHECK(copy >= 0 && (ioctl(copy, EFD_IOC_SET_MAXIMUM, &maximum) == 0 || errno == ENOTTY));
	CHECK(add(set, copy, EPOLLIN, 5) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(eventfd_write(copy, 1) == 0 && eventfd_write(counter, 1) == 0);
		_exit(3);
	}
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
	CHECK(eventfd_read(copy, &maximum) == 0 && maximum == 1);
	CHECK(close(set) == 0 && close(outer) == 0 && close(copy) == 0);
}

int main(void)
{
	struct sigaction action;
	alarm(300);
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	if (!has_filter())
		return 77;
	uses_all();
	return 0;
}
