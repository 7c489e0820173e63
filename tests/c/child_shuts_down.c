/* A child calls shutdown(2) on all fds that its parent has not opened itself. The parent is not
 * affected: its waits sleep, end in time, and do not spin. */
#include "check.h"
#include <sys/resource.h>
#include <sys/wait.h>

static int set, counter, near, far;

static int wait_in_set(int limit)
{
	struct epoll_event event;
	int ready = epoll_wait(set, &event, 1, limit);
	CHECK(ready >= 0);
	return ready ? event.data.fd : -1;
}

static int wait_in_poll(int limit)
{
	struct pollfd fds[2] = {{counter, POLLIN, 0}, {near, POLLIN, 0}};
	int ready = poll(fds, 2, limit);
	CHECK(ready >= 0);
	return ready ? fds[fds[0].revents == 0].fd : -1;
}

static int (*const waits[])(int) = {wait_in_set, wait_in_poll};

static void *write_later(void *nothing)
{
	uint64_t one = 1;
	sleep_ms(50);
	CHECK(write(counter, &one, 8) == 8);
	return nothing;
}

static void check_wakes(void)
{
	uint64_t value;
	char byte;

	for (int at = 0; at < 2; at++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, write_later, NULL) == 0);
		CHECK(waits[at](20000) == counter);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(read(counter, &value, 8) == 8 && value == 1);
		CHECK(write(far, "x", 1) == 1);
		CHECK(waits[at](20000) == near);
		CHECK(read(near, &byte, 1) == 1);
	}
}

static void shut_down_others(void)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		for (int fd = 3; fd < 1024; fd++) {
			if (fd != near && fd != far)
				shutdown(fd, SHUT_RDWR);
		}
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	int ends[2];

	alarm(300);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	near = ends[0];
	far = ends[1];
	CHECK(add(set, counter, EPOLLIN, (uint64_t)counter) == 0);
	CHECK(add(set, near, EPOLLIN, (uint64_t)near) == 0);
	check_wakes();
	shut_down_others();
	for (int at = 0; at < 2; at++) {
		long begun = cpu_time();
		CHECK(waits[at](600) == -1);
		CHECK(cpu_time() - begun < 200);
	}
	check_wakes();
	return 0;
}
