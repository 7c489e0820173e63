/* User-level pipes that a child of fork and a program that is executed write to.
 *
 * cc fork_and_spawn.c $(pkg-config --cflags --libs upoll) -o fork_and_spawn */
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <upoll.h>

extern char **environ;

/* ANCHOR: fork */
/* fork demotes the pipe, so that both processes have it. */
static int hear_from_child(void)
{
	int set = upoll_epoll_create1(EPOLL_CLOEXEC), ends[2];
	struct epoll_event event = {.events = EPOLLIN};
	char word[16] = "";

	if (upoll_pipe2(ends, O_CLOEXEC) != 0 ||
	    upoll_epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) != 0)
		return 0;
	if (fork() == 0)
		_exit(upoll_write(ends[1], "fork", 4) != 4);
	/* The set watches the pipe as before. */
	if (upoll_epoll_wait(set, &event, 1, -1) != 1 || upoll_read(ends[0], word, 15) != 4)
		return 0;
	wait(NULL);
	printf("a word by %s\n", word);
	return upoll_close(ends[0]) == 0 && upoll_close(ends[1]) == 0 && upoll_close(set) == 0;
}
/* ANCHOR_END: fork */

/* ANCHOR: spawn */
/* The library does not see posix_spawn: the program demotes the pipe itself. */
static int hear_from_program(void)
{
	char *words[] = {"sh", "-c", "printf spawn", NULL}, word[16] = "";
	posix_spawn_file_actions_t actions;
	int ends[2];
	pid_t child;

	if (upoll_pipe2(ends, O_CLOEXEC) != 0 || upoll_demote(ends[1]) != 0)
		return 0;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	if (posix_spawn(&child, "/bin/sh", &actions, NULL, words, environ) != 0)
		return 0;
	posix_spawn_file_actions_destroy(&actions);
	if (upoll_read(ends[0], word, 15) != 5)
		return 0;
	waitpid(child, NULL, 0);
	printf("a word by %s\n", word);
	return upoll_close(ends[0]) == 0 && upoll_close(ends[1]) == 0;
}
/* ANCHOR_END: spawn */

int main(void)
{
	return !(hear_from_child() && hear_from_program());
}
