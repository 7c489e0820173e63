/* A signal handler leaves, by siglongjmp, a dup2 of an eventfd to the fd of a socket with SO_LINGER. The
 * socket is closed as soon as its fd means another file. */
#include "../c/check.h"

#ifdef __x86_64__
#include "steps.h"
#include <netinet/in.h>
#include <setjmp.h>
#include <sys/socket.h>
#include <sys/stat.h>

static sigjmp_buf before;
static long countdown;
static int listening;
static struct sockaddr_in address;

static void leaves(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

static void traps(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info;
	if (--countdown == 0) {
		end_steps_of(context);
		raise(SIGUSR1);
	}
}

/* Opens both ends of a connection. */
static void connects(int *one, int *other)
{
	struct linger linger = {1, 1};
	*one = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(*one, (struct sockaddr *)&address, sizeof address) == 0);
	*other = accept(listening, NULL, NULL);
	CHECK(*other >= 0);
	CHECK(setsockopt(*one, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
}

/* Returns whether the call returned before the handler ran. */
static int is_over(int counter, long at)
{
	struct stat is, was;
	volatile int has_left = 0;
	int one, other;
	char byte;
	connects(&one, &other);
	CHECK(fstat(one, &was) == 0);
	if (sigsetjmp(before, 1) == 0) {
		countdown = at;
		begin_steps();
		dup2(counter, one);
		end_steps();
	} else {
		has_left = 1;
	}
	CHECK(fstat(one, &is) == 0);
	if (is.st_ino != was.st_ino)
		CHECK(recv(other, &byte, 1, MSG_DONTWAIT) == 0);
	CHECK(close(one) == 0 && close(other) == 0);
	return !has_left;
}

int main(void)
{
	socklen_t size = sizeof address;
	struct sigaction action = {0};
	uint64_t maximum = 4;
	int counter = eventfd(0, 0), null = open("/dev/null", O_RDWR), other;
	long at;
	CHECK(counter >= 0 && null >= 0);
	/* The kernel's eventfd has no maximum. With one the library serves dup2 itself. */
	ioctl(counter, _IOW('J', 0, uint64_t), &maximum);
	alarm(200);
	action.sa_sigaction = traps, action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	action.sa_flags = 0, action.sa_handler = leaves;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	listening = socket(AF_INET, SOCK_STREAM, 0);
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(listening, (struct sockaddr *)&address, size) == 0 && listen(listening, 1) == 0);
	CHECK(getsockname(listening, (struct sockaddr *)&address, &size) == 0);
	/* The C library resolves a function when it is first called. */
	other = dup2(null, dup(null));
	CHECK(close(other) == 0);
	for (at = 1; !is_over(counter, at); at += 3)
		;
	printf("%ld instructions\n", at);
	return 0;
}
#else
int main(void)
{
	return 77;
}
#endif
