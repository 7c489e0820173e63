/* A child that was made by the system call alone shuts down the sockets of the library: the waits of its
 * parent sleep, end in time, and are woken. Or it takes them out of its sets: the waits end in time, and
 * report what is there then. */
#include "../c/check.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef __x86_64__
int main(void)
{
	return 77;
}
#else

static int set, counter, near, far;

/* Not the C library's functions, whose names the library serves. */
static long raw(long number, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

static int is_kept(int fd)
{
	return fd <= 2 || fd == set || fd == counter || fd == near || fd == far;
}

static void shut_down(int fd)
{
	raw(SYS_shutdown, fd, SHUT_RDWR, 0, 0);
}

static void take_out(int fd)
{
	int member;
	for (member = 0; member < 1024; member++)
		if (!is_kept(member))
			raw(SYS_epoll_ctl, fd, EPOLL_CTL_DEL, member, 0);
}

static void in_a_child(void (*change)(int))
{
	int fd, status;
	long child = raw(SYS_clone, SIGCHLD, 0, 0, 0);
	CHECK(child >= 0);
	if (child == 0) {
		for (fd = 3; fd < 1024; fd++)
			if (!is_kept(fd))
				change(fd);
		raw(SYS_exit_group, 0, 0, 0, 0);
	}
	CHECK(waitpid((pid_t)child, &status, 0) == child && status == 0);
}

static void *write_later(void *nothing)
{
	sleep_ms(30);
	CHECK(eventfd_write(counter, 1) == 0);
	return nothing;
}

static void waits(int longest)
{
	struct epoll_event event;
	struct pollfd both[] = {{counter, POLLIN, 0}, {near, POLLIN, 0}};
	pthread_t thread;
	uint64_t value;
	int turn;
	for (turn = 0; turn < 2; turn++) {
		CHECK(turn ? poll(both, 2, 50) == 0 : epoll_wait(set, &event, 1, 50) == 0);
		CHECK(pthread_create(&thread, NULL, write_later, NULL) == 0);
		CHECK(turn ? poll(both, 2, longest) == 1 : epoll_wait(set, &event, 1, longest) == 1);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(eventfd_read(counter, &value) == 0 && value == 1);
	}
}

/* A set in which a thread has been woken, or none. */
static void after(int has_woken, void (*change)(int))
{
	struct epoll_event event;
	int ends[2], status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child != 0) {
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		return;
	}
	alarm(300);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	near = ends[0], far = ends[1];
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(set, near, EPOLLIN, 2) == 0);
	CHECK(epoll_wait(set, &event, 1, 1) == 0);
	if (has_woken)
		waits(-1);
	in_a_child(change);
	waits(change == shut_down ? -1 : 10000);
	_exit(0);
}

int main(int count, char **arguments)
{
	static void (*const changes[])(int) = {shut_down, take_out};
	int at;
	for (at = 0; at < 4; at++)
		if (count < 2 || atoi(arguments[1]) == at)
			after(at % 2, changes[at / 2]);
	return 0;
}
#endif
