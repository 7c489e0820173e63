/* SIGPIPE is raised like the kernel's, with the same siginfo_t, also in a blocked write that has
 * written a part when the last reader closes. A send that waits for room when sending is shut down raises none. */
#include "check.h"
#include <sys/syscall.h>

static int ends[2];
static volatile sig_atomic_t raised, code, sender, thread_of;
static int is_handled = 1;
static char bytes[1 << 18];

static void handler(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	raised++;
	code = info->si_code;
	sender = info->si_pid;
	thread_of = (int)syscall(SYS_gettid);
}

/* Checks that the signal has arrived when the call returns. Only valgrind delivers signals of
 * libupoll late. */
static void has_come(void)
{
#ifndef KERNEL_ONLY
	while (!raised && is_handled)
		sleep_ms(1);
#endif
}

static void *writes(void *nothing)
{
	ssize_t written = write(ends[1], bytes, sizeof bytes);
	has_come();
	CHECK(thread_of == 0 || thread_of == (int)syscall(SYS_gettid));
	(void)nothing;
	return (void *)written;
}

static void *writes_vectors(void *nothing)
{
	struct iovec list[2] = {{bytes, 1000}, {bytes, sizeof bytes - 1000}};
	ssize_t written = writev(ends[1], list, 2);
	has_come();
	(void)nothing;
	return (void *)written;
}

static void is_broken_midway(void *(*how)(void *), int expected)
{
	pthread_t thread;
	void *written;
	int there = 0, size;
	raised = code = sender = thread_of = 0;
	CHECK(pipe(ends) == 0);
	size = fcntl(ends[1], F_GETPIPE_SZ);
	CHECK(size > 0 && (size_t)size < sizeof bytes);
	CHECK(pthread_create(&thread, NULL, how, NULL) == 0);
	while (there < size) {
		CHECK(ioctl(ends[0], FIONREAD, &there) == 0);
		sleep_ms(1);
	}
	CHECK(close(ends[0]) == 0);
	CHECK(pthread_join(thread, &written) == 0);
	CHECK((ssize_t)written == size);
	CHECK(raised == expected);
	if (expected) {
		CHECK(code == SI_USER);
		CHECK(sender == getpid());
	}
	CHECK(close(ends[1]) == 0);
}

static volatile int sender_thread;

static ssize_t sends(int how)
{
	struct iovec list[2] = {{bytes, 1000}, {bytes, 1000}};
	struct msghdr message;
	memset(&message, 0, sizeof message);
	message.msg_iov = list, message.msg_iovlen = 2;
	switch (how) {
	case 0:
		return write(ends[0], bytes, 1000);
	case 1:
		return writev(ends[0], list, 2);
	case 2:
		return send(ends[0], bytes, 1000, 0);
	default:
		return sendmsg(ends[0], &message, 0);
	}
}

static void *sends_in_thread(void *how)
{
	sender_thread = (int)syscall(SYS_gettid);
	FAILS(sends((int)(intptr_t)how), EPIPE);
	return NULL;
}

static void is_shut_down_midway(int how, int by_the_peer)
{
	pthread_t thread;
	raised = sender_thread = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	while (send(ends[0], bytes, 1000, MSG_DONTWAIT) > 0)
		;
	CHECK(pthread_create(&thread, NULL, sends_in_thread, (void *)(intptr_t)how) == 0);
	while (sender_thread == 0)
		sleep_ms(1);
	sleep_ms(20);
	wait_until_asleep(sender_thread);
	CHECK(shutdown(ends[by_the_peer], by_the_peer ? SHUT_RD : SHUT_WR) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(raised == 0);
	/* A later one raises it. */
	FAILS(sends(how), EPIPE);
	has_come();
	CHECK(raised == 1);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(void)
{
	int how;
	struct sigaction action;
	int pair[2];
	alarm(200);
	memset(&action, 0, sizeof action);
	action.sa_sigaction = handler, action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGPIPE, &action, NULL) == 0);

	/* No byte is written. */
	CHECK(pipe(ends) == 0);
	CHECK(close(ends[0]) == 0);
	FAILS(write(ends[1], "x", 1), EPIPE);
	has_come();
	CHECK(raised == 1 && code == SI_USER && sender == getpid());
	CHECK(close(ends[1]) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(close(pair[0]) == 0);
	raised = code = sender = 0;
	FAILS(send(pair[1], "x", 1, 0), EPIPE);
	has_come();
	CHECK(raised == 1 && code == SI_USER && sender == getpid());
	FAILS(send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE);
	CHECK(raised == 1);
	CHECK(close(pair[1]) == 0);

	is_broken_midway(writes, 1);
	is_broken_midway(writes_vectors, 1);
	for (how = 0; how < 4; how++) {
		is_shut_down_midway(how, 0);
		is_shut_down_midway(how, 1);
	}
	signal(SIGPIPE, SIG_IGN);
	is_handled = 0;
	is_broken_midway(writes, 0);
	return 0;
}
