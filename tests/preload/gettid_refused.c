/* A filter refuses gettid(2), which the program does not call. Threads are cancelled all the same, no handler is lost,
 * and SIGPIPE comes. */
#include "../c/check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

static int counter, ends[2];
static volatile sig_atomic_t alarms, broken_pipes;

static void refuse_gettid(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_gettid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	FAILS(syscall(SYS_gettid), EPERM);
}

static void *reads(void *fd)
{
	uint64_t value;
	CHECK(read(*(int *)fd, &value, sizeof value) < 0);
	return NULL;
}

static void cancels(int *fd)
{
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, reads, fd) == 0);
	sleep_ms(20);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void rings(int signal)
{
	(void)signal;
	alarms++;
	eventfd_write(counter, 1);
}

static void breaks(int signal)
{
	(void)signal;
	broken_pipes++;
}

/* Handlers come in the middle of calls. Each adds 1. */
static void counts_alarms(void)
{
	struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	uint64_t value, sum = 0;
	CHECK(signal(SIGALRM, rings) != SIG_ERR && setitimer(ITIMER_REAL, &often, NULL) == 0);
	while (alarms < 500) {
		int other = eventfd(1, EFD_NONBLOCK);
		CHECK(read(other, &value, sizeof value) == sizeof value && close(other) == 0);
		if (read(counter, &value, sizeof value) == sizeof value)
			sum += value;
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	if (read(counter, &value, sizeof value) == sizeof value)
		sum += value;
	CHECK(sum == (uint64_t)alarms);
}

int main(void)
{
	alarm(120);
	refuse_gettid();
	CHECK((counter = eventfd(0, 0)) >= 0 && pipe(ends) == 0);
	cancels(&counter);
	cancels(&ends[0]);
	alarm(0);
	CHECK(fcntl(counter, F_SETFL, O_NONBLOCK) == 0);
	counts_alarms();
	CHECK(signal(SIGPIPE, breaks) != SIG_ERR && close(ends[0]) == 0);
	FAILS(write(ends[1], "x", 1), EPIPE);
	CHECK(broken_pipes == 1);
	return 0;
}
