/* The process runs out of fds (EMFILE), the system does (ENFILE), or memory is exhausted (mmap
 * fails with ENOMEM), just before each step of a program that uses every call. As in Linux, a step
 * that opens no fd succeeds, except for an ADD to a set that watches objects of both upoll and the
 * kernel. A step that fails does so with that error, and has no effect. It succeeds as soon as
 * there is room, and later steps behave as usual. No pass leaves an fd open. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { FDS = 120, FILLERS = 200 };
enum kind { NONE, NO_FD, NO_FILE, NO_MEMORY };

static struct {
	int counter, copy, ends[2], pair[2], listener, user, mixed, outer, rotating;
} all;

static int can_fail;

/* Returns 1 if a call has opened fds, and 0 if it failed because there are none. */
static int made(int result, enum kind kind)
{
	if (result >= 0)
		return 1;
	CHECK(kind != NONE && can_fail);
	CHECK(kind == NO_FD ? errno == EMFILE : kind == NO_FILE ? errno == ENFILE : errno == ENOMEM);
	return 0;
}

static int eventfds(enum kind kind)
{
	return made(all.counter = eventfd(0, EFD_NONBLOCK), kind);
}
static int pipes(enum kind kind)
{
	return made(pipe2(all.ends, O_NONBLOCK), kind);
}
static int sockets(enum kind kind)
{
	return made(socketpair(AF_UNIX, SOCK_STREAM, 0, all.pair), kind);
}
static int sets_of_objects(enum kind kind)
{
	return made(all.user = epoll_create1(0), kind);
}
static int sets_of_both(enum kind kind)
{
	return made(all.mixed = epoll_create1(EPOLL_CLOEXEC), kind);
}
static int outer_sets(enum kind kind)
{
	return made(all.outer = epoll_create1(0), kind);
}
static int copies(enum kind kind)
{
	return made(all.copy = dup(all.counter), kind);
}
static int copies_by_fcntl(enum kind kind)
{
	int copy = fcntl(all.ends[0], F_DUPFD_CLOEXEC, 0);
	if (made(copy, kind))
		return close(copy) == 0;
	return 0;
}
/* Adds both or none. upoll needs an fd for a set that watches objects of both kinds. */
static int added(int epfd, int one, uint64_t data, int other, uint64_t other_data, enum kind kind)
{
	int is_one = add(epfd, one, EPOLLIN, data) == 0;
	if (is_one && add(epfd, other, EPOLLIN, other_data) == 0) {
		CHECK(add(epfd, other, EPOLLIN, 2) == -1 && errno == EEXIST);
		return 1;
	}
#ifdef KERNEL_ONLY
	/* The test needs the preload: the kernel alone does not pass it. */
	CHECK(getenv("LD_PRELOAD") != NULL);
#endif
	CHECK(kind == NO_FD ? errno == EMFILE : kind == NO_FILE ? errno == ENFILE : errno == ENOMEM);
	FAILS(epoll_ctl(epfd, EPOLL_CTL_DEL, is_one ? other : one, NULL), ENOENT);
	CHECK(!is_one || epoll_ctl(epfd, EPOLL_CTL_DEL, one, NULL) == 0);
	return 0;
}
static int adds_objects(enum kind kind)
{
	return added(all.user, all.counter, 1, all.ends[0], 2, kind);
}
static int adds_the_kernels(enum kind kind)
{
	(void)kind;
	CHECK(add(all.mixed, all.listener, EPOLLIN, 3) == 0);
	return 1;
}
static int adds_both(enum kind kind)
{
	return added(all.mixed, all.counter, 1, all.pair[0], 4, kind);
}
static int adds_sets(enum kind kind)
{
	return added(all.outer, all.mixed, 5, all.user, 6, kind);
}
static int waits_in_vain(enum kind kind)
{
	struct epoll_event event;
	(void)kind;
	CHECK(epoll_wait(all.user, &event, 1, 1) == 0);
	CHECK(epoll_wait(all.mixed, &event, 1, 1) == 0);
	CHECK(epoll_wait(all.outer, &event, 1, 1) == 0);
	return 1;
}
static int polls(enum kind kind)
{
	struct pollfd entries[] = {
		{all.counter, POLLIN, 0}, {all.listener, POLLIN, 0}, {all.mixed, POLLIN, 0}, {all.pair[0], POLLIN, 0},
	};
	struct timespec moment = {0, 1000000};
	sigset_t mask;
	(void)kind;
	sigfillset(&mask);
	CHECK(poll(entries, 4, 1) == 0);
	CHECK(ppoll(entries, 4, &moment, &mask) == 0);
	CHECK(poll(entries, 1, 1) == 0);
	return 1;
}
static int selects(enum kind kind)
{
	struct timeval moment = {0, 1000};
	fd_set set;
	(void)kind;
	FD_ZERO(&set);
	FD_SET(all.counter, &set);
	FD_SET(all.listener, &set);
	FD_SET(all.outer, &set);
	CHECK(select(FDS, &set, NULL, NULL, &moment) == 0);
	return 1;
}
static int tells(enum kind kind)
{
	struct epoll_event events[8];
	struct pollfd entry = {all.outer, POLLIN, 0};
	uint64_t value = 0;
	char byte;
	(void)kind;
	CHECK(eventfd_write(all.copy, 2) == 0);
	CHECK(epoll_wait(all.mixed, events, 8, 60000) == 1 && events[0].data.u64 == 1);
	CHECK(epoll_wait(all.user, events, 8, 60000) == 1 && events[0].data.u64 == 1);
	CHECK(poll(&entry, 1, 60000) == 1);
	CHECK(epoll_wait(all.outer, events, 8, 60000) == 2);
	CHECK(eventfd_read(all.counter, &value) == 0 && value == 2);
	CHECK(epoll_wait(all.outer, events, 8, 0) == 0);
	CHECK(write(all.ends[1], "a", 1) == 1 && write(all.pair[1], "b", 1) == 1);
	CHECK(epoll_wait(all.user, events, 8, 60000) == 1 && events[0].data.u64 == 2);
	CHECK(epoll_wait(all.mixed, events, 8, 60000) == 1 && events[0].data.u64 == 4);
	CHECK(read(all.ends[0], &byte, 1) == 1 && byte == 'a');
	CHECK(read(all.pair[0], &byte, 1) == 1 && byte == 'b');
	return 1;
}
static int changes(enum kind kind)
{
	struct epoll_event event = {EPOLLOUT, {.u64 = 7}};
	(void)kind;
	CHECK(epoll_ctl(all.mixed, EPOLL_CTL_MOD, all.counter, &event) == 0);
	CHECK(epoll_wait(all.mixed, &event, 1, 60000) == 1 && event.data.u64 == 7);
	CHECK(epoll_ctl(all.mixed, EPOLL_CTL_DEL, all.listener, NULL) == 0);
	CHECK(epoll_ctl(all.mixed, EPOLL_CTL_DEL, all.listener, NULL) == -1 && errno == ENOENT);
	CHECK(epoll_ctl(all.outer, EPOLL_CTL_DEL, all.user, NULL) == 0);
	return 1;
}
static int replaces(enum kind kind)
{
	(void)kind;
	CHECK(dup2(all.counter, all.copy) == all.copy);
	CHECK(dup2(all.listener, all.copy) == all.copy);
	CHECK(dup2(all.counter, all.copy) == all.copy);
	return 1;
}
/* The child shares an eventfd's state. */
static int forks(enum kind kind)
{
	uint64_t value = 0;
	int status;
	pid_t child = fork();
	(void)kind;
	CHECK(child >= 0);
	if (child == 0)
		_exit(eventfd_write(all.counter, 5) == 0 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(eventfd_read(all.counter, &value) == 0 && value == 5);
	return 1;
}
static int closes(enum kind kind)
{
	(void)kind;
	CHECK(close(all.counter) == 0 && close(all.copy) == 0 && close(all.user) == 0);
	CHECK(close(all.ends[0]) == 0 && close(all.ends[1]) == 0 && close(all.mixed) == 0);
	CHECK(close(all.pair[0]) == 0 && close(all.pair[1]) == 0 && close(all.outer) == 0);
	return 1;
}

static const struct step {
	int (*run)(enum kind);
	int makes;
} steps[] = {
	{eventfds, 1}, {pipes, 2}, {sockets, 2}, {sets_of_objects, 1}, {sets_of_both, 1}, {outer_sets, 1},
	{copies, 1}, {copies_by_fcntl, 1}, {adds_objects, 0}, {adds_the_kernels, 0}, {adds_both, 0},
	{adds_sets, 0}, {waits_in_vain, 0}, {polls, 0}, {selects, 0}, {tells, 0}, {changes, 0},
	{replaces, 0}, {forks, 0}, {closes, 0},
};
enum { STEPS = sizeof steps / sizeof *steps };

static int open_now(void)
{
	int fd, count = 0;
	for (fd = 0; fd < FDS; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static int fillers[FILLERS], filled;

static void fill(int spare)
{
	while ((fillers[filled] = dup(all.listener)) >= 0)
		filled++;
	CHECK(errno == EMFILE && filled >= spare);
	while (spare-- > 0)
		CHECK(close(fillers[--filled]) == 0);
}

static void empty(void)
{
	while (filled > 0)
		CHECK(close(fillers[--filled]) == 0);
}

static void run_out_of_fds(int at, int spare)
{
	int step;
	for (step = 0; step < STEPS; step++) {
		if (step == at) {
			fill(spare);
			can_fail = spare < steps[step].makes;
			if (!steps[step].run(NO_FD)) {
				empty();
				CHECK(steps[step].run(NONE));
			}
			empty();
		} else {
			CHECK(steps[step].run(NONE));
		}
	}
}

/* From now on calls that open fds fail with ENFILE, or calls that map memory with ENOMEM. */
static int refuse(enum kind kind)
{
	static const unsigned files[] = {
		SYS_eventfd2, SYS_epoll_create1, SYS_pipe2, SYS_socketpair, SYS_socket, SYS_memfd_create,
		SYS_openat, 0,
	};
	static const unsigned memory[] = {SYS_mmap, SYS_mremap, SYS_brk, 0};
	const unsigned *refused = kind == NO_FILE ? files : memory;
	struct sock_filter filter[32];
	struct sock_fprog program = {0, filter};
	filter[program.len++] =
		(struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (; *refused; refused++) {
		filter[program.len++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *refused, 0, 1);
		filter[program.len++] = (struct sock_filter)BPF_STMT(
			BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (kind == NO_FILE ? ENFILE : ENOMEM));
	}
	filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Runs the steps from `at` on without freeing fds, as far as they go. */
static int run_out_for_good(enum kind kind, int at)
{
	int step;
	for (step = 0; step < at; step++)
		CHECK(steps[step].run(NONE));
	if (!refuse(kind))
		return 77;
	can_fail = 1;
	for (; step < STEPS; step++) {
		if (!steps[step].run(kind))
			break;
	}
	return 0;
}

static void in_a_child(enum kind kind)
{
	int at, status;
	for (at = 0; at < STEPS; at++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			exit(run_out_for_good(kind, at));
		CHECK(waitpid(child, &status, 0) == child);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			exit(77);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			fprintf(stderr, "without %s from step %d on: status %x\n",
				kind == NO_FILE ? "files" : "memory", at, status);
			exit(1);
		}
	}
}

int main(void)
{
	struct rlimit limit;
	int at, spare, step, before;
	alarm(200);
	all.listener = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(all.listener >= 0);
	CHECK(bind(all.listener, (void *)&(struct sockaddr){.sa_family = AF_UNIX}, 2) == 0);
	CHECK(listen(all.listener, 1) == 0);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = FDS;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
#ifndef __SANITIZE_ADDRESS__
	/* The sanitizer itself needs memory. */
	in_a_child(NO_MEMORY);
#endif
	in_a_child(NO_FILE);
	run_out_of_fds(STEPS, 0);
	run_out_of_fds(STEPS, 0);
	before = open_now();
	for (at = 0; at < STEPS; at++) {
		for (spare = 0; spare < 4; spare++) {
			run_out_of_fds(at, spare);
			CHECK(open_now() <= before);
		}
	}
	for (step = 0; step < STEPS; step++)
		CHECK(steps[step].run(NONE));
	CHECK(open_now() <= before);
	return 0;
}
