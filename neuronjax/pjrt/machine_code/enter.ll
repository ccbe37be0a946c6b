; A call that goes on in Python, and the list of destroyed small values; see native_ir.py.
; Names in braces are addresses of words of the table, and numbers.

define ptr @enter(ptr %args, ptr %python_callback, ptr %refusal, ptr %short) #0 {
  %ident_f = load ptr, ptr {thread_ident}
  %ident = call i64 %ident_f()
  %main = load i64, ptr {main_thread}
  %is_main = icmp eq i64 %ident, %main
  br i1 %is_main, label %main_thread, label %other_thread

main_thread:
  %finalizing_f = load ptr, ptr {is_finalizing}
  %finalizing = call i32 %finalizing_f()
  %torn_down = icmp ne i32 %finalizing, 0
  br i1 %torn_down, label %torn_down_process, label %python

other_thread:
  %before = atomicrmw add ptr {inside}, i64 1 seq_cst
  %closed = load atomic i64, ptr {closed} seq_cst, align 8
  %open = icmp eq i64 %closed, 0
  br i1 %open, label %python, label %refused

python:
  %type = alloca ptr
  %value = alloca ptr
  %traceback = alloca ptr
  %rest = alloca [{words_of_rest} x ptr]
  %ensure_f = load ptr, ptr {ensure}
  %state = call i32 %ensure_f()
  %fetch_f = load ptr, ptr {fetch}
  call void %fetch_f(ptr %type, ptr %value, ptr %traceback)
  %no_short = icmp eq ptr %short, null
  br i1 %no_short, label %object, label %short_way

short_way:
  %how = call i32 %short(ptr %args, ptr %rest)
  switch i32 %how, label %object [
    i32 {DONE}, label %served
    i32 {PENDING}, label %pending
  ]

pending:
  %end_run = load ptr, ptr {end_run}
  br label %object

object:
  %object_args = phi ptr [ %args, %python ], [ %args, %short_way ], [ %rest, %pending ]
  %callback = phi ptr
    [ %python_callback, %python ], [ %python_callback, %short_way ], [ %end_run, %pending ]
  %number_f = load ptr, ptr {number_of}
  %number = call ptr %number_f(ptr %object_args)
  %no_number = icmp eq ptr %number, null
  br i1 %no_number, label %raised, label %call

call:
  %call_f = load ptr, ptr {call}
  %answer = call ptr %call_f(ptr %callback, ptr %number)
  %drop_f = load ptr, ptr {drop}
  call void %drop_f(ptr %number)
  %no_answer = icmp eq ptr %answer, null
  br i1 %no_answer, label %raised, label %answered

raised:
  %clear_f = load ptr, ptr {clear}
  call void %clear_f()
  br label %served

answered:
  %none = load ptr, ptr {none}
  %is_none = icmp eq ptr %answer, %none
  br i1 %is_none, label %dropped, label %error

error:
  %address_f = load ptr, ptr {address_of}
  %address = call ptr %address_f(ptr %answer)
  br label %dropped

dropped:
  %value_of_answer = phi ptr [ null, %answered ], [ %address, %error ]
  call void %drop_f(ptr %answer)
  br label %served

served:
  %result = phi ptr [ %refusal, %raised ], [ %value_of_answer, %dropped ], [ null, %short_way ]
  %type_v = load ptr, ptr %type
  %value_v = load ptr, ptr %value
  %traceback_v = load ptr, ptr %traceback
  %restore_f = load ptr, ptr {restore}
  call void %restore_f(ptr %type_v, ptr %value_v, ptr %traceback_v)
  %release_f = load ptr, ptr {release}
  call void %release_f(i32 %state)
  br i1 %is_main, label %done, label %leave

leave:
  %after = atomicrmw sub ptr {inside}, i64 1 seq_cst
  br label %done

done:
  ret ptr %result

refused:
  %undone = atomicrmw sub ptr {inside}, i64 1 seq_cst
  ret ptr %refusal

torn_down_process:
  ret ptr null
}

define i64 @take_destroyed() #0 {
  %first = atomicrmw xchg ptr {destroyed}, i64 0 acq_rel
  ret i64 %first
}
