/* The limit of watches (fs.epoll.max_user_watches) is reached before each watch of a program with sets of all kinds. An ADD
 * fails with ENOSPC and has no effect, and succeeds as soon as there is room; no other call of the program fails. No fd is left.
 *
 * The limit of the machine stays as it is: a filter (seccomp) has another thread make each epoll_ctl(2), and count. It makes
 * system calls of its own, which the preload does not see: the library's fds are among their arguments. */
#include "../c/check.h"

#ifndef __x86_64__
int main(void)
{
	return 77;
}
#else
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

enum { PLENTY = 1 << 20 };

static int listener = -1, left = PLENTY, ran_out;

static long raw(long number, long a, long b, long c, long d)
{
	register long fourth __asm__("r10") = d;
	long result = number;
	__asm__ volatile("syscall"
			 : "+a"(result)
			 : "D"(a), "S"(b), "d"(c), "r"(fourth)
			 : "rcx", "r11", "memory");
	return result;
}

static long answer(const struct seccomp_data *call)
{
	long set = (long)call->args[0], fd = (long)call->args[2], event = (long)call->args[3];
	int op = (int)call->args[1];
	long result = raw(SYS_epoll_ctl, set, op, fd, event);
	if (result != 0)
		return result;
	if (op == EPOLL_CTL_ADD && __atomic_load_n(&left, __ATOMIC_SEQ_CST) == 0) {
		/* All other errors come first. */
		CHECK(raw(SYS_epoll_ctl, set, EPOLL_CTL_DEL, fd, 0) == 0);
		__atomic_fetch_add(&ran_out, 1, __ATOMIC_SEQ_CST);
		return -ENOSPC;
	}
	__atomic_fetch_add(&left, op == EPOLL_CTL_ADD ? -1 : op == EPOLL_CTL_DEL, __ATOMIC_SEQ_CST);
	return 0;
}

static void *answers(void *nothing)
{
	while (__atomic_load_n(&listener, __ATOMIC_SEQ_CST) < 0)
		sleep_ms(1);
	for (;;) {
		struct seccomp_notif call;
		struct seccomp_notif_resp response;
		long result;
		memset(&call, 0, sizeof call);
		result = raw(SYS_ioctl, listener, (long)SECCOMP_IOCTL_NOTIF_RECV, (long)&call, 0);
		/* A signal has ended the call. */
		if (result == -ENOENT || result == -EINTR)
			continue;
		CHECK(result == 0);
		memset(&response, 0, sizeof response);
		response.id = call.id;
		response.error = (int)answer(&call.data);
		raw(SYS_ioctl, listener, (long)SECCOMP_IOCTL_NOTIF_SEND, (long)&response, 0);
	}
	return nothing;
}

static int has_filter(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {4, filter};
	pthread_t thread;
	int fd;
	CHECK(pthread_create(&thread, NULL, answers, NULL) == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	__atomic_store_n(&listener, fd, __ATOMIC_SEQ_CST);
	return fd >= 0;
}

/* Returns the number of all fds, those of the library as well. */
static int open_fds(void)
{
	int fd, count = 0;
	for (fd = 0; fd < 1024; fd++)
		count += raw(SYS_fcntl, fd, F_GETFD, 0, 0) >= 0;
	return count;
}

static int watches;

/* From now on there are as many as this pass has. */
static void limit(void)
{
	__atomic_store_n(&left, watches, __ATOMIC_SEQ_CST);
}
static void no_limit(void)
{
	__atomic_store_n(&left, PLENTY, __ATOMIC_SEQ_CST);
}

static int ready(int set)
{
	struct epoll_event events[16];
	return epoll_wait(set, events, 16, 0);
}

/* Adds an fd that is ready. */
static void add_within(int set, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u64 = (uint64_t)fd};
	int before = ready(set), result;
	limit();
	result = epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	if (result == -1) {
		CHECK(errno == ENOSPC);
		event.events &= ~EPOLLEXCLUSIVE;
		FAILS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), ENOENT);
		event.events = events;
		FAILS(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), ENOENT);
		CHECK(ready(set) == before);
		no_limit();
		CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	}
	no_limit();
	FAILS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EEXIST);
	CHECK(ready(set) == before + 1);
}

static int timer_that_is_ready(void)
{
	struct itimerspec moment;
	struct pollfd entry = {timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), POLLIN, 0};
	memset(&moment, 0, sizeof moment);
	moment.it_value.tv_nsec = 1;
	CHECK(entry.fd >= 0 && timerfd_settime(entry.fd, 0, &moment, NULL) == 0);
	CHECK(poll(&entry, 1, -1) == 1);
	return entry.fd;
}

struct sleeper {
	int set, tid;
	uint64_t found;
};

static void *sleeps(void *argument)
{
	struct sleeper *sleeper = argument;
	struct epoll_event event;
	__atomic_store_n(&sleeper->tid, gettid(), __ATOMIC_SEQ_CST);
	CHECK(epoll_wait(sleeper->set, &event, 1, -1) == 1);
	sleeper->found = event.data.u64;
	return NULL;
}

/* A set in which a thread sleeps gets a member of the other kind. */
static void while_a_thread_sleeps(void)
{
	struct sleeper sleeper = {epoll_create1(0), 0, 0};
	int counter = eventfd(0, EFD_NONBLOCK), timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 3};
	pthread_t thread;
	CHECK(sleeper.set >= 0 && counter >= 0 && timer >= 0);
	CHECK(add(sleeper.set, counter, EPOLLIN, 7) == 0);
	CHECK(pthread_create(&thread, NULL, sleeps, &sleeper) == 0);
	while (!__atomic_load_n(&sleeper.tid, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	wait_until_asleep(sleeper.tid);
	limit();
	if (epoll_ctl(sleeper.set, EPOLL_CTL_ADD, timer, &event) == -1) {
		CHECK(errno == ENOSPC);
		FAILS(epoll_ctl(sleeper.set, EPOLL_CTL_DEL, timer, NULL), ENOENT);
	}
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && sleeper.found == 7);
	no_limit();
	CHECK(close(sleeper.set) == 0 && close(counter) == 0 && close(timer) == 0);
}

static void pass(void)
{
	int counter = eventfd(1, EFD_NONBLOCK), idle = eventfd(0, EFD_NONBLOCK), timer = timer_that_is_ready();
	int set = epoll_create1(0), outer = epoll_create1(0), kernels = epoll_create1(0), ends[2], pair[2], at;
	struct epoll_event event;
	uint64_t value;
	CHECK(counter >= 0 && idle >= 0 && set >= 0 && outer >= 0 && kernels >= 0);
	CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[1], "x", 1) == 1);

	add_within(set, counter, EPOLLIN);
	add_within(set, timer, EPOLLIN);
	add_within(set, ends[0], EPOLLIN);
	add_within(set, pair[0], EPOLLIN | EPOLLOUT);
	add_within(kernels, timer, EPOLLIN);
	add_within(kernels, ends[0], EPOLLIN);
	add_within(kernels, counter, EPOLLIN);
	add_within(outer, set, EPOLLIN);
	add_within(outer, kernels, EPOLLIN);
	add_within(outer, pair[0], EPOLLOUT | EPOLLEXCLUSIVE);

	limit();
	{
		struct pollfd entries[] = {{idle, POLLIN, 0}, {outer, POLLIN, 0}, {ends[0], POLLIN, 0}};
		CHECK(poll(entries, 3, -1) == 2 && !entries[0].revents && entries[1].revents == POLLIN);
	}
	CHECK(read(counter, &value, sizeof value) == sizeof value && ready(set) == 3 && ready(kernels) == 2);
	CHECK(read(timer, &value, sizeof value) == sizeof value && ready(set) == 2 && ready(kernels) == 1);
	event = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u64 = 5};
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pair[0], &event) == 0 && ready(set) == 2 && ready(set) == 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, pair[0], NULL) == 0 && ready(outer) == 3);
	no_limit();
	CHECK(eventfd_write(counter, 1) == 0 && ready(set) == 2 && ready(kernels) == 2);
	for (at = 0; at < 2; at++)
		CHECK(close(ends[at]) == 0 && close(pair[at]) == 0);
	CHECK(ready(set) == 1 && ready(kernels) == 1);
	CHECK(close(outer) == 0 && close(set) == 0 && close(kernels) == 0);
	CHECK(close(counter) == 0 && close(idle) == 0 && close(timer) == 0);
	while_a_thread_sleeps();
}

int main(void)
{
	int before;
	alarm(300);
	if (!has_filter())
		return 77;
	/* These passes open what the library keeps. */
	watches = PLENTY, pass();
	watches = 0, pass();
	before = open_fds();
	for (watches = 0;; watches++) {
		__atomic_store_n(&ran_out, 0, __ATOMIC_SEQ_CST);
		pass();
		CHECK(open_fds() == before);
		if (!__atomic_load_n(&ran_out, __ATOMIC_SEQ_CST))
			break;
		CHECK(watches < 100);
	}
	CHECK(watches > 0);
	return 0;
}
#endif
