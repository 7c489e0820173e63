/* Uses that demote an eventfd: a program that inherits it, a message, and a stream. */
#include "../c/rights.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

/* The executed program: reads and writes the fd that it is given. */
static int started(const char *number)
{
	uint64_t value = 0;
	int fd = atoi(number);
	CHECK(read(fd, &value, sizeof value) == sizeof value && value == 5);
	value = 6;
	CHECK(write(fd, &value, sizeof value) == sizeof value);
	return 0;
}

static void finish(pid_t child, int fd)
{
	uint64_t value = 0;
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(eventfd_read(fd, &value) == 0 && value == 6);
	close(fd);
}

int main(int count, char **arguments)
{
	char number[16], *args[3];
	uint64_t value = 0;
	int fd, got, fds[2];
	pid_t child;
	FILE *stream;
	if (count == 2)
		return started(arguments[1]);
	args[0] = arguments[0], args[1] = number, args[2] = NULL;

	fd = eventfd(5, 0);
	snprintf(number, sizeof number, "%d", fd);
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, args, environ) == 0);
	finish(child, fd);

	/* An eventfd that the file actions duplicate for the new program only. */
	fd = eventfd(5, EFD_CLOEXEC);
	snprintf(number, sizeof number, "%d", 77);
	posix_spawn_file_actions_t actions;
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 77) == 0);
	CHECK(posix_spawnp(&child, "/proc/self/exe", &actions, NULL, args, environ) == 0);
	finish(child, fd);

	fd = eventfd(5, 0);
	snprintf(number, sizeof number, "%d", fd);
	child = vfork();
	if (child == 0) {
		execl("/proc/self/exe", args[0], args[1], NULL);
		_exit(9);
	}
	finish(child, fd);

	/* In the same process: the program reads it, and reports that by its exit status. */
	fd = eventfd(5, 0);
	child = fork();
	if (child == 0) {
		close(fd);
		fd = eventfd(5, 0);
		snprintf(number, sizeof number, "%d", fd);
		execlp("/proc/self/exe", args[0], args[1], NULL);
		_exit(9);
	}
	CHECK(waitpid(child, &got, 0) == child && got == 0);
	close(fd);

	fd = eventfd(5, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	send_fd(fds[0], fd);
	got = receive_fd(fds[1]);
	CHECK(eventfd_write(fd, 1) == 0);
	CHECK(eventfd_read(got, &value) == 0 && value == 6);
	FAILS(sendmsg(fds[0], nowhere(), 0), EFAULT);
	close(fd), close(got), close(fds[0]), close(fds[1]);

	fd = eventfd(5, 0);
	stream = fdopen(fd, "r");
	CHECK(stream != NULL && fread(&value, sizeof value, 1, stream) == 1 && value == 5);
	fclose(stream);
	FAILS(close(fd), EBADF);

	/* An eventfd ignores the offset, but -1 is invalid. */
	fd = eventfd(5, 0);
	struct iovec place = {&value, sizeof value};
	FAILS(pread(fd, &value, sizeof value, 0), ESPIPE);
	CHECK(preadv2(fd, &place, 1, -1, 0) == sizeof value && value == 5);
	close(fd);
	return 0;
}
