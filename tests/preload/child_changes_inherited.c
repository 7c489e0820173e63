/* A child that was made by the system call alone has all fds of its parent, those of the library too. It
 * reads, writes and changes those that the program has not opened. The waits of its parent sleep
 * meanwhile, end in time, and report what is there. */
#include "../c/check.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#ifndef __x86_64__
int main(void)
{
	return 77;
}
#else

static int set, outer, counter, timer, near, far;
static volatile int *is_over;

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static int is_kept(int fd)
{
	return fd <= 2 || fd == set || fd == outer || fd == counter || fd == timer || fd == near || fd == far;
}

/* Not the C library's functions, whose names the library serves. */
static void change(int fd)
{
	char bytes[64] = {1};
	int one = 1;
	struct timeval limit = {0, 1};
	struct linger linger = {1, 0};
	raw(SYS_fcntl, fd, F_SETFL, O_NONBLOCK, 0, 0, 0);
	raw(SYS_read, fd, (long)bytes, 8, 0, 0, 0);
	raw(SYS_recvfrom, fd, (long)bytes, sizeof bytes, MSG_DONTWAIT, 0, 0);
	bytes[0] = 1;
	raw(SYS_write, fd, (long)bytes, 8, 0, 0, 0);
	raw(SYS_sendto, fd, (long)bytes, 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
	raw(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, (long)&limit, sizeof limit, 0);
	raw(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, (long)&linger, sizeof linger, 0);
	raw(SYS_setsockopt, fd, SOL_SOCKET, SO_PASSCRED, (long)&one, sizeof one, 0);
	raw(SYS_setsockopt, fd, SOL_SOCKET, SO_MARK, (long)&one, sizeof one, 0);
	raw(SYS_setsockopt, fd, SOL_SOCKET, SO_PRIORITY, (long)&one, sizeof one, 0);
	raw(SYS_fcntl, fd, F_SETOWN, raw(SYS_getpid, 0, 0, 0, 0, 0, 0), 0, 0, 0);
	raw(SYS_fchmod, fd, 0, 0, 0, 0, 0);
	raw(SYS_ftruncate, fd, 0, 0, 0, 0, 0);
}

static void hostile(int *fds, int count)
{
	int at;
	raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
	while (!*is_over)
		for (at = 0; at < count; at++)
			change(fds[at]);
	raw(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

static int find(int *found, int most)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;
	CHECK(folder != NULL);
	while ((entry = readdir(folder)) && count < most) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && !is_kept(fd) && fd != dirfd(folder))
			found[count++] = fd;
	}
	closedir(folder);
	return count;
}

static int wait_in_set(int limit)
{
	struct epoll_event event;
	int ready = epoll_wait(set, &event, 1, limit);
	CHECK(ready >= 0);
	return ready ? event.data.fd : -1;
}

static int wait_in_outer(int limit)
{
	struct epoll_event event;
	int ready = epoll_wait(outer, &event, 1, limit);
	CHECK(ready >= 0);
	return ready ? wait_in_set(0) : -1;
}

static int wait_in_poll(int limit)
{
	struct pollfd fds[2] = {{counter, POLLIN, 0}, {near, POLLIN, 0}};
	int ready = poll(fds, 2, limit);
	CHECK(ready >= 0);
	return ready ? fds[fds[0].revents == 0].fd : -1;
}

static int (*const waits[])(int) = {wait_in_set, wait_in_poll, wait_in_outer};

static void *write_later(void *nothing)
{
	uint64_t one = 1;
	sleep_ms(20);
	CHECK(write(counter, &one, 8) == 8);
	return nothing;
}

static void *send_later(void *nothing)
{
	sleep_ms(20);
	CHECK(write(far, "x", 1) == 1);
	return nothing;
}

static void check_wakes(void)
{
	uint64_t value;
	char byte;
	for (int at = 0; at < 3; at++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, write_later, NULL) == 0);
		CHECK(waits[at](-1) == counter);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(read(counter, &value, 8) == 8 && value == 1);
		CHECK(pthread_create(&thread, NULL, send_later, NULL) == 0);
		CHECK(waits[at](-1) == near);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(read(near, &byte, 1) == 1);
	}
}

int main(void)
{
	int ends[2], fds[256], count, status;
	long begun, child;

	alarm(300);
	CHECK(close_range(3, ~0u, 0) == 0);
	is_over = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(is_over != MAP_FAILED);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK((outer = epoll_create1(0)) >= 0 && (timer = timerfd_create(CLOCK_MONOTONIC, 0)) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	near = ends[0], far = ends[1];
	CHECK(add(set, counter, EPOLLIN, (uint64_t)counter) == 0);
	CHECK(add(set, near, EPOLLIN, (uint64_t)near) == 0);
	CHECK(add(outer, timer, EPOLLIN, 1) == 0 && add(outer, set, EPOLLIN, 2) == 0);
	check_wakes();
	count = find(fds, 256);
	child = raw(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
	CHECK(child >= 0);
	if (child == 0)
		hostile(fds, count);
	for (int round = 0; round < 5; round++)
		check_wakes();
	*is_over = 1;
	CHECK(waitpid((pid_t)child, &status, 0) == child && status == 0);
	/* The changes by the child are permanent. */
	check_wakes();
	for (int at = 0; at < 3; at++) {
		begun = cpu_time();
		CHECK(waits[at](400) == -1);
		CHECK(cpu_time() - begun < 200);
	}
	return 0;
}
#endif
