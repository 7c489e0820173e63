/* A thread with the smallest stack possible demotes its objects, with their contents. */
#include "../c/check.h"
#include <limits.h>
#include <sys/wait.h>

/* Fills a page and reads a part of it. Demotion writes the whole page to the kernel's pipe and
 * reads that part. */
static void fill(int reader, int writer)
{
	char bytes[1000] = {0};
	for (int times = 0; times < 10; times++)
		CHECK(write(writer, bytes, sizeof bytes) == sizeof bytes);
	CHECK(read(reader, bytes, 500) == 500);
}

static void *forks(void *unused)
{
	int counter = eventfd(3, 0), set = epoll_create1(0), pipes[2], one_ended[2], pair[2], reset[2];
	int status, child;
	char bytes[1000];
	CHECK(add(set, counter, EPOLLIN, 1) == 0);
	CHECK(pipe(pipes) == 0 && pipe(one_ended) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, reset) == 0);
	fill(pipes[0], pipes[1]);
	fill(one_ended[0], one_ended[1]);
	fill(pair[0], pair[1]);
	fill(pair[1], pair[0]);
	fill(reset[0], reset[1]);
	CHECK(add(set, pipes[0], EPOLLIN, 2) == 0 && add(set, pair[0], EPOLLIN, 3) == 0);
	CHECK(close(one_ended[1]) == 0 && close(reset[1]) == 0);
	child = fork();
	if (child == 0)
		_exit(7);
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	for (int left = 9500; left > 0; left -= 500) {
		CHECK(read(pipes[0], bytes, 500) == 500 && read(one_ended[0], bytes, 500) == 500);
		CHECK(read(pair[0], bytes, 500) == 500 && read(pair[1], bytes, 500) == 500);
		CHECK(read(reset[0], bytes, 500) == 500);
	}
	return unused;
}

int main(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	alarm(200);
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
	CHECK(pthread_create(&thread, &attributes, forks, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	return 0;
}
