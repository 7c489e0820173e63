/* A seccomp filter may fail unknown system calls with EPERM instead of ENOSYS, as those of
 * container runtimes did with epoll_pwait2(2). A wait in any set still keeps its time limit and
 * reports its events. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int refuse(long number)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static void waits(int epfd, int fd)
{
	struct epoll_event event;
	uint64_t value;
	long begun = now();
	CHECK(epoll_wait(epfd, &event, 1, 20) == 0);
	CHECK(now() - begun >= 20000);
	CHECK(eventfd_write(fd, 1) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 10000) == 1 && event.data.u64 == 1);
	CHECK(eventfd_read(fd, &value) == 0);
}

int main(void)
{
	/* With user-level members only, with a kernel member as well, and with kernel members only. */
	int user = epoll_create1(0), both = epoll_create1(0), kernel = epoll_create1(0);
	int counter = eventfd(0, 0), listener = socket(AF_UNIX, SOCK_STREAM, 0);
	struct epoll_event event;
	CHECK(add(user, counter, EPOLLIN, 1) == 0);
	CHECK(add(both, counter, EPOLLIN, 1) == 0);
	CHECK(listener >= 0 && bind(listener, &(struct sockaddr){.sa_family = AF_UNIX}, 2) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(add(both, listener, EPOLLIN, 2) == 0);
	CHECK(add(kernel, listener, EPOLLIN, 2) == 0);
	if (!refuse(SYS_epoll_pwait2))
		return 77;
	waits(user, counter);
	waits(both, counter);
	CHECK(epoll_wait(kernel, &event, 1, 20) == 0);
#ifdef UPOLL_REDIRECT
	{
		struct timespec limit = {0, 20000000};
		long begun = now();
		CHECK(epoll_pwait2(kernel, &event, 1, &limit, NULL) == 0);
		CHECK(now() - begun >= 20000);
	}
#endif
	return 0;
}
