/* A supervisor of another process's system calls (seccomp) puts eventfds there, and each has what the
 * other one writes. The kernel takes structures of a later version, too, which are larger. */
#include "../c/rights.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Its result is the fd that the supervisor has put there. */
#define ASKS SYS_getpgid

struct later_addfd {
	struct seccomp_notif_addfd added;
	uint64_t more;
};

#define LATER_ADDFD _IOC(_IOC_WRITE, '!', 3, sizeof(struct later_addfd))

static int filter_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ASKS, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static void use_added(void)
{
	uint64_t value = 0;
	int fd = (int)syscall(ASKS, 0);
	CHECK(fd >= 0 && read(fd, &value, sizeof value) == sizeof value && value == 5);
	value = 6;
	CHECK(write(fd, &value, sizeof value) == sizeof value);
}

static void supervised(int to)
{
	int listener = filter_calls();
	alarm(300);
	if (listener < 0)
		_exit(77);
	send_fd(to, listener);
	CHECK(close(listener) == 0);
	use_added();
	use_added();
	_exit(0);
}

/* Fds that are not open for the program, among them those of the library's own. */
static void add_none(int listener, uint64_t id)
{
	struct seccomp_notif_addfd added;
	unsigned fd;
	for (fd = 700; fd < 1024; fd++) {
		memset(&added, 0, sizeof added);
		added.id = id, added.srcfd = fd;
		FAILS(ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &added), EBADF);
	}
}

static int serve(int listener, unsigned long request)
{
	struct seccomp_notif asked;
	struct seccomp_notif_resp answer;
	struct later_addfd later;
	int counter = eventfd(5, 0), put;
	CHECK(counter >= 0);
	memset(&asked, 0, sizeof asked);
	CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0);
	add_none(listener, asked.id);
	memset(&later, 0, sizeof later);
	later.added.id = asked.id, later.added.srcfd = (unsigned)counter;
	put = ioctl(listener, request, &later);
	CHECK(put >= 0);
	memset(&answer, 0, sizeof answer);
	answer.id = asked.id, answer.val = put;
	CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0);
	return counter;
}

int main(void)
{
	struct pollfd entry;
	uint64_t value = 0;
	int pair[2], listener, status, i, counters[2], epfd, member;
	pid_t child;
	alarm(300);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		supervised(pair[1]);
	entry = (struct pollfd){pair[0], POLLIN, 0};
	while (poll(&entry, 1, 100) == 0)
		if (waitpid(child, &status, WNOHANG) == child)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	listener = receive_fd(pair[0]);
	CHECK(listener >= 0);
	/* A set of both kinds, for which the library takes fds. */
	epfd = epoll_create1(0), member = eventfd(0, 0);
	CHECK(epfd >= 0 && member >= 0);
	CHECK(add(epfd, member, EPOLLIN, 0) == 0 && add(epfd, pair[0], EPOLLIN, 0) == 0);
	counters[0] = serve(listener, SECCOMP_IOCTL_NOTIF_ADDFD);
	counters[1] = serve(listener, LATER_ADDFD);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (i = 0; i < 2; i++)
		CHECK(read(counters[i], &value, sizeof value) == sizeof value && value == 6);
	return 0;
}
