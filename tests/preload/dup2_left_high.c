/* Handlers leave dup2(2) and dup3(2) to a high fd by siglongjmp(3). Later calls do not wait for the ones that were
 * left, by this thread or by another one, with no object in user space and with one. */
#include "../c/check.h"
#include <setjmp.h>
#include <sys/time.h>

enum { ROUNDS = 300, CALLS = 60, HIGH = 100 };
static sigjmp_buf left;

static void leave(int number)
{
	(void)number;
	siglongjmp(left, 1);
}

/* Waiting a second for each would take longer than the alarm. */
static void *call(void *file)
{
	for (int i = 0; i < CALLS; i++) {
		CHECK(dup2(*(int *)file, HIGH + 1) == HIGH + 1);
		CHECK(dup3(*(int *)file, HIGH + 2, O_CLOEXEC) == HIGH + 2);
	}
	return NULL;
}

int main(void)
{
	static volatile int round, user_level;
	int file = open("/dev/null", O_RDWR);
	pthread_t thread;
	struct itimerval soon = {{0, 0}, {0, 500}};
	CHECK(file >= 0 && signal(SIGALRM, leave) != SIG_ERR);
	for (user_level = 0; user_level < 2; user_level++) {
		if (user_level)
			CHECK(eventfd(0, 0) >= 0);
		for (round = 0; round < ROUNDS; round++) {
			if (sigsetjmp(left, 1))
				continue;
			CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
			for (;;) {
				dup2(file, HIGH);
				dup3(file, HIGH, O_CLOEXEC);
			}
		}
		/* The next one is a limit. */
		CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
		alarm(100);
		CHECK(pthread_create(&thread, NULL, call, &file) == 0 && pthread_join(thread, NULL) == 0);
		call(&file);
		alarm(0);
		CHECK(signal(SIGALRM, leave) != SIG_ERR);
	}
	return 0;
}
