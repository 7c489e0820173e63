/* A chain of forks. Each process makes sets, eventfds, sockets and threads of its own, and closes
 * the inherited ones. No process has more fds open than its ancestors: the fds of their sets and
 * threads are closed in it. */
#include "check.h"
#include <dirent.h>
#include <sys/wait.h>

#ifdef KERNEL_ONLY
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#endif

enum { GENERATIONS = 30, SETTLED = 3 };

static int open_fds(void)
{
	int count = -1;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	/* Without ".." and the fd of the folder, which was counted as well. */
	return count - 2;
}

struct made {
	int set, above, counter, limited, near, far;
};

static struct made make(void)
{
	struct made made;
	uint64_t maximum = 5;
	int ends[2];

	CHECK((made.set = epoll_create1(0)) >= 0 && (made.above = epoll_create1(0)) >= 0);
	CHECK((made.counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK((made.limited = eventfd(0, EFD_NONBLOCK)) >= 0);
	/* The kernel's eventfd has no maximum. */
	CHECK(ioctl(made.limited, EFD_IOC_SET_MAXIMUM, &maximum) == 0 || errno == ENOTTY);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	made.near = ends[0];
	made.far = ends[1];
	CHECK(add(made.set, made.counter, EPOLLIN, 1) == 0);
	CHECK(add(made.set, made.near, EPOLLIN, 2) == 0);
	CHECK(add(made.set, made.limited, EPOLLIN, 3) == 0);
	CHECK(add(made.above, made.set, EPOLLIN, 4) == 0);
	return made;
}

static void *wait_in_poll(void *arg)
{
	struct made *made = arg;
	struct pollfd fds[] = {{made->counter, POLLIN, 0}, {made->limited, POLLIN, 0}, {made->near, POLLIN, 0}};
	CHECK(poll(fds, 3, 60000) == 1);
	return NULL;
}

static void use(struct made *made)
{
	struct epoll_event event;
	uint64_t value = 1;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, wait_in_poll, made) == 0);
	sleep_ms(5);
	CHECK(write(made->counter, &value, 8) == 8);
	CHECK(pthread_join(thread, NULL) == 0);
	wait_in_poll(made);
	CHECK(epoll_wait(made->above, &event, 1, 60000) == 1 && event.data.u64 == 4);
	CHECK(epoll_wait(made->set, &event, 1, 60000) == 1 && event.data.u64 == 1);
	CHECK(read(made->counter, &value, 8) == 8);
	CHECK(write(made->limited, &value, 8) == 8);
	CHECK(epoll_wait(made->set, &event, 1, 60000) == 1 && event.data.u64 == 3);
	CHECK(read(made->limited, &value, 8) == 8);
	CHECK(write(made->far, "x", 1) == 1);
	CHECK(epoll_wait(made->set, &event, 1, 60000) == 1 && event.data.u64 == 2);
}

static void close_all(struct made *made)
{
	CHECK(close(made->set) == 0 && close(made->above) == 0);
	CHECK(close(made->counter) == 0 && close(made->limited) == 0);
	CHECK(close(made->near) == 0 && close(made->far) == 0);
}

int main(void)
{
	int generation, counts[GENERATIONS + 1] = {0}, status;

	alarm(200);
	for (generation = 1; generation <= GENERATIONS; generation++) {
		struct made made = make();
		pid_t child;
		use(&made);
		counts[generation] = open_fds();
		if (generation > SETTLED && counts[generation] > counts[SETTLED]) {
			fprintf(stderr, "%d fds in generation %d, %d in generation %d\n", counts[generation],
				generation, counts[SETTLED], SETTLED);
			_exit(1);
		}
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			close_all(&made);
			continue;
		}
		CHECK(waitpid(child, &status, 0) == child);
		_exit(status != 0);
	}
	return 0;
}
