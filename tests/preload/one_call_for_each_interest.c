/* A fork puts each eventfd that a set watches into the kernel's set by one system call: a filter (seccomp) kills a
 * process that modifies a member of low fd. The set reports the same as the kernel's, and as often. */
#include "../c/check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { KINDS = 4, EACH = 6, COUNT = KINDS * EACH };

static const uint32_t kinds[KINDS] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLPRI};
static int sets[2], fds[COUNT];

static int has_filter(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_MOD, 0, 3),
		/* The library's own fds are higher. */
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 2 * COUNT, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Checks that the set reports these eventfds of each kind, as bits, and no others. */
static void reports(int set, unsigned level, unsigned edge, unsigned one_shot)
{
	struct epoll_event events[COUNT];
	int count = epoll_wait(set, events, COUNT, 0), at;
	unsigned found[KINDS] = {0};
	CHECK(count >= 0);
	for (at = 0; at < count; at++) {
		const unsigned of = events[at].data.u32;
		CHECK(of < COUNT && events[at].events == EPOLLIN);
		found[of % KINDS] |= 1U << of / KINDS;
	}
	CHECK(found[0] == level && found[1] == edge && found[2] == one_shot && found[3] == 0);
}

static void forks(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* Every other one counts already. */
		for (int at = 0; at < COUNT; at++)
			if (at / KINDS % 2 == 0 && eventfd_write(fds[at], 1) != 0)
				_exit(1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	const unsigned all = (1U << EACH) - 1;
	int at;
	uint64_t value;
	alarm(200);
	if (!has_filter())
		return 77;
	for (at = 0; at < 2; at++)
		CHECK((sets[at] = epoll_create1(0)) >= 0);
	for (at = 0; at < COUNT; at++) {
		CHECK((fds[at] = eventfd(0, EFD_NONBLOCK)) >= 0 && fds[at] < 2 * COUNT);
		CHECK(add(sets[0], fds[at], kinds[at % KINDS], (uint64_t)at) == 0);
		CHECK(add(sets[1], fds[at], kinds[at % KINDS], (uint64_t)at) == 0);
		CHECK(at / KINDS % 2 == 0 || eventfd_write(fds[at], 1) == 0);
	}
	forks();
	reports(sets[0], all, all, all);
	reports(sets[0], all, 0, 0);
	reports(sets[1], all, all, all);
	reports(sets[1], all, 0, 0);
	for (at = 0; at < COUNT; at++) {
		CHECK(eventfd_read(fds[at], &value) == 0 && value == 1);
		CHECK(eventfd_write(fds[at], 1) == 0);
	}
	reports(sets[0], all, all, 0);
	reports(sets[1], all, all, 0);
	for (at = 0; at < COUNT; at++)
		CHECK(close(fds[at]) == 0);
	return 0;
}
