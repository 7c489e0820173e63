/* Signal handlers end their thread in a call on a kernel object that sleeps in the kernel. */
#include "../c/check.h"
#include <linux/futex.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static int set, pair[2], empty[2], full[2], sockets[2], counter, one, other;
static char bytes[1 << 16];
static struct iovec list = {bytes, sizeof bytes};

static void ends(int signal)
{
	(void)signal;
	pthread_exit(&set);
}

static void waits(void)
{
	struct epoll_event event;
	epoll_wait(set, &event, 1, -1);
}

static void waits_with_a_mask(void)
{
	struct epoll_event event;
	sigset_t mask, now;
	sigemptyset(&mask), sigemptyset(&now);
	sigaddset(&now, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &now, NULL) == 0);
	epoll_pwait(set, &event, 1, -1, &mask);
}

static void polls(void)
{
	struct pollfd entry = {empty[0], POLLIN, 0};
	poll(&entry, 1, -1);
}

static void polls_with_a_mask(void)
{
	struct pollfd entry = {empty[0], POLLIN, 0};
	sigset_t mask;
	sigemptyset(&mask);
	ppoll(&entry, 1, NULL, &mask);
}

static void selects(void)
{
	fd_set in;
	FD_ZERO(&in);
	FD_SET(empty[0], &in);
	select(empty[0] + 1, &in, NULL, NULL, NULL);
}

static void selects_with_a_mask(void)
{
	fd_set in;
	sigset_t mask;
	sigemptyset(&mask);
	FD_ZERO(&in);
	FD_SET(empty[0], &in);
	pselect(empty[0] + 1, &in, NULL, NULL, NULL, &mask);
}

static void reads(void)
{
	CHECK(read(empty[0], bytes, 1) == -1);
}

static void reads_a_list(void)
{
	CHECK(readv(empty[0], &list, 1) == -1);
}

static void reads_a_list_by_offset(void)
{
	CHECK(preadv2(empty[0], &list, 1, -1, 0) == -1);
}

static void reads_by_number(void)
{
	syscall(SYS_read, empty[0], bytes, 1L);
}

static void writes(void)
{
	CHECK(write(full[1], bytes, sizeof bytes) == -1);
}

static void writes_a_list(void)
{
	CHECK(writev(full[1], &list, 1) == -1);
}

static void writes_a_list_by_offset(void)
{
	CHECK(pwritev2(full[1], &list, 1, -1, 0) == -1);
}

static void receives(void)
{
	CHECK(recv(pair[0], bytes, 1, 0) == -1);
}

static void receives_a_message(void)
{
	struct msghdr message = {0};
	message.msg_iov = &list, message.msg_iovlen = 1;
	CHECK(recvmsg(pair[0], &message, 0) == -1);
}

static void receives_messages(void)
{
	struct mmsghdr message = {0};
	message.msg_hdr.msg_iov = &list, message.msg_hdr.msg_iovlen = 1;
	CHECK(recvmmsg(pair[0], &message, 1, 0, NULL) == -1);
}

static void sends(void)
{
	CHECK(send(sockets[0], bytes, sizeof bytes, 0) == -1);
}

static void sends_a_message(void)
{
	struct msghdr message = {0};
	message.msg_iov = &list, message.msg_iovlen = 1;
	CHECK(sendmsg(sockets[0], &message, 0) == -1);
}

static void sends_messages(void)
{
	struct mmsghdr message = {0};
	message.msg_hdr.msg_iov = &list, message.msg_hdr.msg_iovlen = 1;
	CHECK(sendmmsg(sockets[0], &message, 1, 0) == -1);
}

static void sends_a_file(void)
{
	CHECK(sendfile(sockets[0], one, NULL, 100) == -1);
}

static void splices(void)
{
	CHECK(splice(empty[0], NULL, full[1], NULL, 1, 0) == -1);
}

static void tees(void)
{
	CHECK(tee(empty[0], full[1], 1, 0) == -1);
}

static void maps(void)
{
	CHECK(vmsplice(full[1], &list, 1, 0) == -1);
}

static void locks(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	CHECK(fcntl(other, F_OFD_SETLKW, &lock) == -1);
}

static void sleeps_by_number(void)
{
	static int word;
	syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void counts(void)
{
	eventfd_t value;
	CHECK(eventfd_read(counter, &value) == -1);
}

static void has_a_shell_run(void)
{
	CHECK(system("sleep 1") == -1);
}

static void *runs(void *call)
{
	(*(void (**)(void))call)();
	return NULL;
}

#define CALL(name) {#name, name}

int main(void)
{
	static const struct {
		const char *name;
		void (*call)(void);
	} CALLS[] = {
		CALL(waits), CALL(waits_with_a_mask), CALL(polls), CALL(polls_with_a_mask),
		CALL(selects), CALL(selects_with_a_mask), CALL(reads), CALL(reads_a_list),
		CALL(reads_a_list_by_offset), CALL(reads_by_number), CALL(writes),
		CALL(writes_a_list), CALL(writes_a_list_by_offset), CALL(receives),
		CALL(receives_a_message), CALL(receives_messages), CALL(sends),
		CALL(sends_a_message), CALL(sends_messages), CALL(sends_a_file), CALL(splices),
		CALL(tees), CALL(maps), CALL(locks), CALL(sleeps_by_number), CALL(counts),
		CALL(has_a_shell_run),
	};
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[32];
	size_t at;
	alarm(200);
	CHECK(signal(SIGUSR1, ends) != SIG_ERR);
	CHECK(pipe(empty) == 0 && pipe(full) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	counter = eventfd(0, 0), set = epoll_create1(0);
	CHECK(set >= 0 && add(set, empty[0], EPOLLIN, 1) == 0);
	CHECK(fcntl(full[1], F_SETFL, O_NONBLOCK) == 0 && fcntl(sockets[0], F_SETFL, O_NONBLOCK) == 0);
	while (write(full[1], bytes, sizeof bytes) > 0)
		;
	while (send(sockets[0], bytes, sizeof bytes, 0) > 0)
		;
	while (send(sockets[0], bytes, 1, 0) > 0)
		;
	CHECK(fcntl(full[1], F_SETFL, 0) == 0 && fcntl(sockets[0], F_SETFL, 0) == 0);
	/* A file without a name, and another open file description of it. */
	one = memfd_create("lock", 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", one);
	other = open(path, O_RDWR);
	CHECK(one >= 0 && other >= 0 && ftruncate(one, 100) == 0);
	CHECK(fcntl(one, F_OFD_SETLK, &lock) == 0);
	for (at = 0; at < sizeof CALLS / sizeof *CALLS; at++) {
		pthread_t thread;
		void *result;
		printf("%s\n", CALLS[at].name), fflush(stdout);
		CHECK(pthread_create(&thread, NULL, runs, (void *)&CALLS[at].call) == 0);
		sleep_ms(50);
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		CHECK(pthread_join(thread, &result) == 0);
		CHECK(result == &set);
	}
	return 0;
}
