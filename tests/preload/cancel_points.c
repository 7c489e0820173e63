/* Threads are cancelled in calls on sockets, while they splice or wait for a lock, and before they
 * close. In the last case the fd stays open. */
#include "../c/check.h"
#include <setjmp.h>

enum how { SEND, SENDTO, SENDMSG, SENDMMSG, RECV, RECVFROM, RECVMSG, RECVMMSG, SPLICE, TEE, VMSPLICE,
	   LOCK, LOCK_COUNTER, CLOSE, CLOSE_COUNTER, HOWS };
static const char *const names[] = {"send", "sendto", "sendmsg", "sendmmsg", "recv", "recvfrom",
				    "recvmsg", "recvmmsg", "splice", "tee", "vmsplice",
				    "fcntl(F_SETLKW)", "fcntl(F_SETLKW) of an eventfd", "close",
				    "close of an eventfd"};

static int pair[2], empty[2], full[2], locked;
static volatile int is_cleaned;
static char bytes[1 << 16];

static void cleans(void *nothing)
{
	(void)nothing;
	is_cleaned = 1;
}

static void *blocks(void *argument)
{
	enum how how = *(enum how *)argument;
	struct iovec list = {bytes, sizeof bytes};
	struct mmsghdr messages;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	memset(&messages, 0, sizeof messages);
	messages.msg_hdr.msg_iov = &list, messages.msg_hdr.msg_iovlen = 1;
	pthread_cleanup_push(cleans, NULL);
	for (;;)
		switch (how) {
		case SEND: send(pair[0], bytes, sizeof bytes, 0); break;
		case SENDTO: sendto(pair[0], bytes, sizeof bytes, 0, NULL, 0); break;
		case SENDMSG: sendmsg(pair[0], &messages.msg_hdr, 0); break;
		case SENDMMSG: sendmmsg(pair[0], &messages, 1, 0); break;
		case RECV: recv(pair[0], bytes, 1, 0); break;
		case RECVFROM: recvfrom(pair[0], bytes, 1, 0, NULL, NULL); break;
		case RECVMSG: recvmsg(pair[0], &messages.msg_hdr, 0); break;
		case RECVMMSG: recvmmsg(pair[0], &messages, 1, 0, NULL); break;
		case SPLICE: splice(empty[0], NULL, full[1], NULL, 1, 0); break;
		case TEE: tee(empty[0], full[1], 1, 0); break;
		case VMSPLICE: vmsplice(full[1], &list, 1, 0); break;
		case LOCK: case LOCK_COUNTER: fcntl(locked, F_OFD_SETLKW, &lock); break;
		case CLOSE: case CLOSE_COUNTER:
			CHECK(pthread_cancel(pthread_self()) == 0);
			close(locked);
			/* Not reached. */
			_exit(4);
		case HOWS: break;
		}
	pthread_cleanup_pop(0);
	return NULL;
}

static void is_cancelled(enum how how, int wait)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	char path[32];
	pthread_t thread;
	struct timespec limit;
	void *result;
	int holder;
	if (how == LOCK_COUNTER || how == CLOSE_COUNTER) {
		/* All eventfds have one inode. */
		holder = eventfd(0, 0), locked = eventfd(0, 0);
	} else {
		/* A file without a name, and another open file description of it. */
		holder = memfd_create("lock", 0);
		snprintf(path, sizeof path, "/proc/self/fd/%d", holder);
		locked = open(path, O_RDWR);
	}
	CHECK(holder >= 0 && locked >= 0);
	CHECK(fcntl(holder, F_OFD_SETLK, &lock) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(pipe(empty) == 0 && pipe(full) == 0);
	is_cleaned = 0;
	CHECK(pthread_create(&thread, NULL, blocks, &how) == 0);
	if (wait)
		sleep_ms(20);
	if (how != CLOSE && how != CLOSE_COUNTER)
		CHECK(pthread_cancel(thread) == 0);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 60;
	if (pthread_timedjoin_np(thread, &result, &limit) != 0) {
		fprintf(stderr, "%s is not cancelled\n", names[how]);
		exit(1);
	}
	CHECK(result == PTHREAD_CANCELED && is_cleaned);
	CHECK(close(locked) == 0 && close(holder) == 0);
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
	CHECK(close(empty[0]) == 0 && close(empty[1]) == 0);
	CHECK(close(full[0]) == 0 && close(full[1]) == 0);
}

static sigjmp_buf before;
static volatile int may_leave;

static void leaves(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

/* Leaves a cancellation point by siglongjmp. A cancellation must not interrupt nanosleep afterwards
 * as if the thread were still in that call. */
static void *leaves_a_call(void *nothing)
{
	struct timespec time = {0, 200000000};
	char byte;
	int state;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
	if (sigsetjmp(before, 1) == 0) {
		may_leave = 1;
		read(empty[0], &byte, 1);
	}
	CHECK(write(full[1], "x", 1) == 1);
	CHECK(nanosleep(&time, NULL) == 0);
	return nothing;
}

static void is_not_taken_for_being_in_a_call(void)
{
	pthread_t thread;
	char byte;
	CHECK(pipe(empty) == 0 && pipe(full) == 0);
	CHECK(signal(SIGUSR1, leaves) != SIG_ERR);
	CHECK(pthread_create(&thread, NULL, leaves_a_call, NULL) == 0);
	while (!may_leave)
		sleep_ms(1);
	sleep_ms(20);
	CHECK(pthread_kill(thread, SIGUSR1) == 0);
	CHECK(read(full[0], &byte, 1) == 1);
	sleep_ms(20);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	int wait, how;
	alarm(200);
	for (wait = 0; wait < 2; wait++)
		for (how = SEND; how < HOWS; how++)
			is_cancelled((enum how)how, wait);
	is_not_taken_for_being_in_a_call();
	return 0;
}
