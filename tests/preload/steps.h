/* Single steps: between begin_steps and end_steps SIGTRAP comes after each instruction. Its handler may
 * end them, too. */
#ifndef STEPS_H
#define STEPS_H

#include <ucontext.h>

enum { TRAP = 0x100 };

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

/* In the handler. */
static void end_steps_of(void *context)
{
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP;
}

#endif
