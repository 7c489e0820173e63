/* Single steps: between begin_steps and end_steps SIGTRAP comes after each instruction. Its handler
 * may end them, too. */
#ifndef STEPS_H
#define STEPS_H

#include <stdlib.h>
#include <time.h>
#include <ucontext.h>

enum { TRAP = 0x100 };

/* Interrupting a call at each of its instructions takes a number of steps that is the square of
 * theirs. So a run interrupts it at a quarter of the places, and the quarter changes from day to
 * day. STEPS_PART=0..3 selects a quarter. */
enum { PARTS = 4 };

static inline long part_of_today(void)
{
	const char *part = getenv("STEPS_PART");
	return (part != NULL ? atol(part) : (long)(time(NULL) / 86400)) % PARTS;
}

static void begin_steps(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq;"
			 "lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}

static void end_steps(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq;"
			 "lea 128(%%rsp), %%rsp" ::: "memory", "cc");
}

/* Called by the handler. */
static void end_steps_of(void *context)
{
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP;
}

#endif
