/* A supervisor of another process's system calls (seccomp) puts an eventfd there, and each has what the
 * other one writes. */
#include "../c/check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Its result is the number that the supervisor has put there. */
#define ASKS SYS_getpgid

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

static void pass(int to, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec part = {"x", 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof control};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	CHECK(sendmsg(to, &message, 0) == 1);
}

static int take(int from)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	int fd;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof control};
	CHECK(recvmsg(from, &message, 0) == 1 && message.msg_controllen == sizeof control);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
	return fd;
}

static void supervised(int to)
{
	uint64_t value = 0;
	int listener = filter_calls(), fd;
	alarm(100);
	if (listener < 0)
		_exit(77);
	pass(to, listener);
	CHECK(close(listener) == 0);
	fd = (int)syscall(ASKS, 0);
	CHECK(fd >= 0 && read(fd, &value, sizeof value) == sizeof value && value == 5);
	value = 6;
	CHECK(write(fd, &value, sizeof value) == sizeof value);
	_exit(0);
}

int main(void)
{
	struct seccomp_notif asked;
	struct seccomp_notif_resp answer;
	struct seccomp_notif_addfd added;
	struct pollfd entry;
	uint64_t value = 0;
	int pair[2], listener, counter, status, put;
	pid_t child;
	alarm(100);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		supervised(pair[1]);
	entry = (struct pollfd){pair[0], POLLIN, 0};
	while (poll(&entry, 1, 100) == 0)
		if (waitpid(child, &status, WNOHANG) == child)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	listener = take(pair[0]);
	counter = eventfd(5, 0);
	CHECK(listener >= 0 && counter >= 0);
	memset(&asked, 0, sizeof asked);
	CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0);
	memset(&added, 0, sizeof added);
	added.id = asked.id, added.srcfd = (unsigned)counter;
	put = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &added);
	CHECK(put >= 0);
	memset(&answer, 0, sizeof answer);
	answer.id = asked.id, answer.val = put;
	CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 6);
	return 0;
}
