/* A process is stopped and continued while one of its threads waits. A wait in a set ends with
 * EINTR, although no handler ran; poll, select and read continue. A wait without a mask in a set of
 * user-level members may continue, too (upoll(7)). No event is lost. */
#include "../c/check.h"
#include <dirent.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

enum ending { INTERRUPTED, GOES_ON, EITHER };

static int counter, timer, set, mixed, waiter;
static int orders[2], answers[2];

static int in_set(void)
{
	struct epoll_event event;
	return epoll_wait(set, &event, 1, -1);
}

static int in_set_with_mask(void)
{
	struct epoll_event event;
	sigset_t mask;
	sigfillset(&mask);
	return epoll_pwait(set, &event, 1, -1, &mask);
}

static int in_mixed_set(void)
{
	struct epoll_event event;
	return epoll_wait(mixed, &event, 1, -1);
}

static int in_mixed_set_with_limit(void)
{
	struct epoll_event event;
	return epoll_wait(mixed, &event, 1, 600000);
}

static int in_poll(void)
{
	struct pollfd entry = {counter, POLLIN, 0};
	return poll(&entry, 1, -1);
}

static int in_mixed_poll(void)
{
	struct pollfd both[2] = {{counter, POLLIN, 0}, {timer, POLLIN, 0}};
	return poll(both, 2, 600000);
}

static int in_poll_of_set(void)
{
	struct pollfd entry = {mixed, POLLIN, 0};
	return poll(&entry, 1, -1);
}

static int in_select(void)
{
	fd_set numbers;
	FD_ZERO(&numbers);
	FD_SET(counter, &numbers);
	return select(counter + 1, &numbers, NULL, NULL, NULL);
}

static int in_read(void)
{
	uint64_t value;
	return read(counter, &value, sizeof value) == sizeof value ? 1 : -1;
}

static const struct wait {
	const char *name;
	int (*waits)(void);
	enum ending ending;
} waits[] = {
	{"epoll_wait", in_set, EITHER},
	{"epoll_pwait", in_set_with_mask, INTERRUPTED},
	{"epoll_wait in a mixed set", in_mixed_set, INTERRUPTED},
	{"epoll_wait with a limit", in_mixed_set_with_limit, INTERRUPTED},
	{"poll", in_poll, GOES_ON},
	{"poll of two files", in_mixed_poll, GOES_ON},
	{"poll of a set", in_poll_of_set, GOES_ON},
	{"select", in_select, GOES_ON},
	{"read", in_read, GOES_ON},
};

static void *runs(void *argument)
{
	const struct wait *wait = argument;
	int found, error;
	__atomic_store_n(&waiter, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	found = wait->waits();
	error = errno;
	if (found == -1 && error == EINTR && wait->ending != GOES_ON)
		return NULL;
	if (found == 1 && wait->ending != INTERRUPTED)
		return NULL;
	fprintf(stderr, "%s: %d (errno %d)\n", wait->name, found, error);
	return argument;
}

/* Returns whether all threads of a process have stopped. */
static int has_stopped(pid_t process)
{
	char path[64 + sizeof(((struct dirent *)NULL)->d_name)], line[512], *state;
	struct dirent *entry;
	DIR *threads;
	int is_all = 1;
	snprintf(path, sizeof path, "/proc/%d/task", process);
	threads = opendir(path);
	CHECK(threads != NULL);
	while ((entry = readdir(threads)) != NULL) {
		FILE *stat;
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/stat", process, entry->d_name);
		stat = fopen(path, "r");
		/* A thread may have ended in between. */
		if (stat == NULL || fgets(line, sizeof line, stat) == NULL)
			line[0] = 0;
		if (stat != NULL)
			fclose(stat);
		state = strrchr(line, ')');
		is_all &= state == NULL || state[2] == 'T';
	}
	closedir(threads);
	return is_all;
}

/* A process that stops and continues this one on request. */
static void stop_and_continue(pid_t process)
{
	char order;
	while (read(orders[0], &order, 1) == 1) {
		CHECK(kill(process, SIGSTOP) == 0);
		while (!has_stopped(process))
			sleep_ms(1);
		CHECK(kill(process, SIGCONT) == 0 && write(answers[1], "c", 1) == 1);
	}
	_exit(0);
}

static int is_right(const struct wait *wait)
{
	pthread_t thread;
	void *wrong;
	uint64_t value;
	char answer;
	__atomic_store_n(&waiter, 0, __ATOMIC_SEQ_CST);
	CHECK(pthread_create(&thread, NULL, runs, (void *)(uintptr_t)wait) == 0);
	while (__atomic_load_n(&waiter, __ATOMIC_SEQ_CST) == 0)
		sleep_ms(1);
	/* The thread may sleep for other reasons first. */
	sleep_ms(20);
	wait_until_asleep(waiter);
	CHECK(write(orders[1], "s", 1) == 1 && read(answers[0], &answer, 1) == 1);
	if (wait->ending == INTERRUPTED)
		CHECK(pthread_join(thread, &wrong) == 0);
	else
		sleep_ms(100);
	CHECK(eventfd_write(counter, 1) == 0);
	if (wait->ending != INTERRUPTED)
		CHECK(pthread_join(thread, &wrong) == 0);
	if (wait->waits != in_read)
		CHECK(eventfd_read(counter, &value) == 0 && value == 1);
	return wrong == NULL;
}

int main(void)
{
	pid_t process = getpid(), child;
	size_t at;
	int is_failed = 0;
	alarm(300);
	CHECK(pipe(orders) == 0 && pipe(answers) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(close(orders[1]) == 0 && close(answers[0]) == 0);
		stop_and_continue(process);
	}
	counter = eventfd(0, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
	set = epoll_create1(0), mixed = epoll_create1(0);
	CHECK(counter >= 0 && timer >= 0 && set >= 0 && mixed >= 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0);
	CHECK(add(mixed, counter, EPOLLIN, 1) == 0 && add(mixed, timer, EPOLLIN, 2) == 0);
	for (at = 0; at < sizeof waits / sizeof *waits; at++)
		is_failed |= !is_right(&waits[at]);
	return is_failed;
}
